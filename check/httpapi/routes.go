package httpapi

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"strings"

	"github.com/streamcounter/streamcounter/check/access"
)

// Paths. A key, an id or a target follows those that end in a slash.
const (
	checkPath        = "/v1/check"
	keysPath         = "/v1/keys/"
	historyPath      = "/v1/history/"
	reservationsPath = "/v1/reservations/"
	overridesPath    = "/v1/overrides/"
)

// Routes are the routes of the interface, with the parameters that each takes.
func (s *Server) Routes(ready func(context.Context) error) []Route {
	const check, read, admin = access.ScopeCheck, access.ScopeRead, access.ScopeAdmin
	routes := append(HealthRoutes(ready),
		route("POST", checkPath, check, s.postCheck),
		route("GET", checkPath, check, s.getCheck, "key", "cost", "mode", "deny_status", "extractor", "value"),
		route("POST", "/v1/events", access.ScopeAppend, s.postEvents),
		route("GET", keysPath, read, s.getKey, "values"),
		route("DELETE", keysPath, admin, s.deleteKey),
		route("GET", historyPath, read, s.getHistory, "limit", "before"),
		route("GET", "/v1/throttled", read, s.getThrottled, "limit", "after", "rule", "shadow"),
		route("GET", "/v1/top", read, s.getTop, "limit", "rule"),
		Route{Method: "GET", Path: "/openapi.json", Scope: read, Serve: http.HandlerFunc(getOpenAPI)},
		route("POST", "/v1/leases", check, s.postLease),
		route("POST", "/v1/reservations", check, s.postReservation),
		route("POST", reservationsPath, check, s.postSettlement),
		route("DELETE", reservationsPath, check, s.deleteReservation),
		route("GET", "/v1/overrides", admin, s.listOverrides, "limit", "after"),
		route("GET", overridesPath, admin, s.getOverride),
		route("PUT", overridesPath, admin, s.putOverride, "dry_run"),
		route("DELETE", overridesPath, admin, s.deleteOverride, "reason"),
	)
	if s.config.Bouncers != nil { // as in CrowdSec's local API, which ignores parameters that it does not know
		routes = append(routes,
			Route{Method: "GET", Path: "/v1/decisions", Scope: read, APIKey: true, Serve: handler(s.getDecisions)},
			Route{Method: "GET", Path: "/v1/decisions/stream", Scope: read, APIKey: true,
				Serve: handler(s.getDecisionStream)})
	}
	return routes
}

func route(method, path string, scope access.Scope, serve handler, parameters ...string) Route {
	return Route{Method: method, Path: path, Scope: scope, Serve: withParameters(serve, parameters...)}
}

// HealthRoutes are /healthz (the process runs) and /readyz (it can do its work). They need no token, so they return no
// details: ready may write to the log why a process is not ready.
func HealthRoutes(ready func(context.Context) error) []Route {
	health := func(path, status string, ready func(context.Context) error) Route {
		return Route{Method: "GET", Path: path, Open: true, Serve: handler(func(w http.ResponseWriter,
			r *http.Request) error {
			if ready != nil && ready(r.Context()) != nil {
				return errNotReady
			}
			return respond(w, statusAnswer{status}, nil)
		})}
	}
	return []Route{health("/healthz", "ok", nil), health("/readyz", "ready", ready)}
}

// OpenAPI describes the HTTP interface; a test compares every answer with it.
//
//go:embed openapi.json
var OpenAPI []byte

func getOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(OpenAPI) // the caller is gone if this fails
}

// rest returns what follows a path in a request. The error is for escapes that EscapedPath never has.
func rest(r *http.Request, path string) string {
	text, _ := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), path))
	return text
}

package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
)

// Route is one method and path of the HTTP interface.
type Route struct {
	Method string // GET also answers HEAD
	// Path as it is in the request line. A Path that ends in "/" is the beginning of a path, and a key follows, which
	// may contain anything. "/" alone is a whole path.
	Path string
	// Scope that a token must have. An Open route needs no token, and must reveal nothing.
	Scope access.Scope
	Open  bool
	// APIKey means that the token may also be in X-Api-Key, where CrowdSec's bouncers send it. Other routes must not
	// read this header: behind a proxy it belongs to the application.
	APIKey bool
	Serve  http.Handler
}

// Router passes requests to routes, if their tokens permit it. It takes the place of http.ServeMux for two reasons.
// ServeMux cleans paths, and a key may be ".." or hold "//". And an unknown path must ask for a token too.
type Router struct {
	tokens   *access.Tokens
	exact    map[string][]Route // path → its methods
	prefixes []Route            // those whose Path is the beginning of a path

	refusals access.Refusals
}

// NewRouter makes a router; nil tokens let everybody in.
func NewRouter(tokens *access.Tokens, routes ...Route) *Router {
	x := &Router{tokens: tokens, exact: map[string][]Route{}}
	for _, r := range routes {
		if strings.HasSuffix(r.Path, "/") && r.Path != "/" {
			x.prefixes = append(x.prefixes, r)
		} else {
			x.exact[r.Path] = append(x.exact[r.Path], r)
		}
	}
	return x
}

func (x *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	echoRequestID(w, r)
	at := x.at(r.URL.EscapedPath())
	i := slices.IndexFunc(at, func(route Route) bool {
		return route.Method == r.Method || route.Method == http.MethodGet && r.Method == http.MethodHead
	})
	scope, open := access.ScopeAny, false
	if i >= 0 {
		scope, open = at[i].Scope, at[i].Open
		if at[i].APIKey {
			r = withAPIKey(r)
		}
	}
	if !open && x.tokens == nil {
		if reason, err := refuseForeignPage(r); err != nil {
			x.refuse(w, r, reason, err)
			return
		}
	}
	if !open {
		if err := x.tokens.Allow(access.Bearer(r.Header), scope); err != nil {
			access.Challenge(w.Header(), r.Header, err, scope)
			x.refuse(w, r, err.Error(), err) // the text has only names of our tokens and scopes
			return
		}
		if scope == access.ScopeRead || scope == access.ScopeAdmin {
			r = x.tokens.WithCaller(r)
		}
	}
	switch {
	case i >= 0:
		at[i].Serve.ServeHTTP(w, r)
	case len(at) > 0:
		allow := methodsOf(at)
		w.Header().Set("Allow", allow)
		_ = writeJSON(w, http.StatusMethodNotAllowed, withID(w, r, api.Problem{
			Type: api.ProblemPrefix + "method-not-allowed", Title: "Method not allowed",
			Status: http.StatusMethodNotAllowed, Detail: "no " + r.Method + " here, only " + allow}))
	default:
		notFound(w, r, "")
	}
}

// refuse answers a request that may not be made, and logs the first of each kind. If the caller has chosen the status
// of denials, as a proxy does, the status is 500: nginx would take 401 or 403 for "over the limit", and one wrong
// token would throttle every customer.
func (x *Router) refuse(w http.ResponseWriter, r *http.Request, reason string, err error) {
	p := problemOf(err)
	route := x.Pattern(r)
	if route == checkPath && r.URL.Query().Has("deny_status") {
		p.Status = http.StatusInternalServerError
	}
	log, _ := r.Context().Value(logKey{}).(serverLog)
	x.refusals.Log(log.Logger, route, reason, err, "method", r.Method, "remote", r.RemoteAddr, "status", p.Status)
	_ = writeJSON(w, p.Status, withID(w, r, p))
}

// withAPIKey takes the token from X-Api-Key, if there is no other.
func withAPIKey(r *http.Request) *http.Request {
	if key := r.Header.Get("X-Api-Key"); key != "" && access.Bearer(r.Header) == "" {
		r = r.Clone(r.Context())
		r.Header.Set(access.TokenHeader, key)
	}
	return r
}

// at returns the routes of a path.
func (x *Router) at(path string) (at []Route) {
	if at = x.exact[path]; at != nil {
		return at
	}
	for _, r := range x.prefixes {
		if strings.HasPrefix(path, r.Path) {
			at = append(at, r)
		}
	}
	return at
}

// Pattern returns the path of a request with "{key}" in place of its key: "/v1/keys/{key}". It is empty for an
// unknown path.
func (x *Router) Pattern(r *http.Request) string {
	at := x.at(r.URL.EscapedPath())
	switch {
	case len(at) == 0:
		return ""
	case strings.HasSuffix(at[0].Path, "/") && at[0].Path != "/":
		return at[0].Path + "{key}"
	}
	return at[0].Path
}

// methodsOf returns the value of the header Allow.
func methodsOf(routes []Route) string {
	var list []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		if slices.ContainsFunc(routes, func(r Route) bool {
			return r.Method == m || m == http.MethodHead && r.Method == http.MethodGet
		}) {
			list = append(list, m)
		}
	}
	return strings.Join(list, ", ")
}

// refuseForeignPage refuses requests that a page of another site makes a browser send to a server without tokens. It
// recognizes them by Sec-Fetch-Site, by their Origin, or by their Host. The Host is checked if the connection comes
// to a loopback address: it must then be a name of this machine. Otherwise the name of the foreign page was made to
// resolve to this machine. A link or an image in a page is enough to send a check. There are only a few different
// reasons, but any number of errors, so the log uses the reason.
func refuseForeignPage(r *http.Request) (reason string, err error) {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return "Sec-Fetch-Site", fmt.Errorf("%w: it comes from a page of another site, and this server has no tokens",
			api.ErrForbidden)
	}
	if origin := r.Header.Get("Origin"); origin != "" && !strings.EqualFold(hostOf(origin), r.Host) {
		return "Origin", fmt.Errorf("%w: it comes from a page of %s, and this server has no tokens", api.ErrForbidden,
			api.Shorten(origin))
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil || !isLoopback(local.String()) || isLoopback(r.Host) {
		return "", nil
	}
	return "Host", fmt.Errorf(
		"%w: the Host is %s, expected localhost or 127.0.0.1: this server has no tokens and answers this machine "+
			"alone", api.ErrForbidden, api.Shorten(r.Host))
}

// hostOf returns HOST:PORT of an Origin, empty if it has none ("null").
func hostOf(origin string) string {
	_, host, _ := strings.Cut(origin, "://")
	return host
}

// isLoopback reports whether hostport, with or without a port, is a name of this machine.
func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	return strings.EqualFold(host, "localhost") || host == "" || net.ParseIP(host) != nil &&
		net.ParseIP(host).IsLoopback()
}

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

// Route is one thing that can be asked for over HTTP.
type Route struct {
	Method string // GET also answers HEAD
	// Path as it stands in the request line. One that ends in "/" is the
	// beginning of a path: what follows it is a key, which may hold anything.
	Path string
	// Scope that a token must have. Open needs no token, and must tell nothing.
	Scope access.Scope
	Open  bool
	Serve http.Handler
}

// Router hands requests on to routes, if Tokens let them. It is no ServeMux,
// because that one tidies paths up before it looks (a key may be ".." or hold
// "//"), and because whatever is not there must not answer without a token either.
type Router struct {
	tokens *access.Tokens
	exact  map[string][]Route // path → its methods
	begins []Route
}

// NewRouter makes a router; nil tokens let everybody in.
func NewRouter(tokens *access.Tokens, routes ...Route) *Router {
	x := &Router{tokens: tokens, exact: map[string][]Route{}}
	x.Add(routes...)
	return x
}

// Add adds routes; it is not for a router that serves already.
func (x *Router) Add(routes ...Route) {
	for _, r := range routes {
		if strings.HasSuffix(r.Path, "/") {
			x.begins = append(x.begins, r)
		} else {
			x.exact[r.Path] = append(x.exact[r.Path], r)
		}
	}
}

// Routes lists what there is.
func (x *Router) Routes() []Route {
	list := slices.Clone(x.begins)
	for _, routes := range x.exact {
		list = append(list, routes...)
	}
	return list
}

func (x *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := x.at(r.URL.EscapedPath())
	i := slices.IndexFunc(at, func(route Route) bool {
		return route.Method == r.Method || route.Method == http.MethodGet && r.Method == http.MethodHead
	})
	scope, open := access.ScopeAny, false
	if i >= 0 {
		scope, open = at[i].Scope, at[i].Open
	}
	if !open && x.tokens == nil {
		if err := ownPage(r); err != nil {
			writeProblem(w, err)
			return
		}
	}
	if !open {
		if err := x.tokens.Allow(access.Bearer(r.Header), scope); err != nil {
			access.Challenge(w.Header(), r.Header, err, scope)
			writeProblem(w, err)
			return
		}
	}
	switch {
	case i >= 0:
		at[i].Serve.ServeHTTP(w, r)
	case len(at) > 0:
		notAllowed(w, r, methodsOf(at))
	default:
		writeJSON(w, "application/problem+json", http.StatusNotFound, api.Problem{Type: "about:blank",
			Title:  "Not found",
			Status: http.StatusNotFound, Detail: fmt.Sprintf("no %s %s", r.Method, api.Shorten(r.URL.Path))})
	}
}

// at gives the routes of a path.
func (x *Router) at(path string) (at []Route) {
	if at = x.exact[path]; at != nil {
		return at
	}
	for _, r := range x.begins {
		if strings.HasPrefix(path, r.Path) {
			at = append(at, r)
		}
	}
	return at
}

// methodsOf is what Allow says.
func methodsOf(routes []Route) string {
	var list []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		if slices.ContainsFunc(routes, func(r Route) bool {
			return r.Method == m || m == http.MethodHead && r.Method == http.MethodGet
		}) {
			list = append(list, m)
		}
	}
	return strings.Join(list, ", ")
}

// ownPage refuses what a page of another site makes a browser send to a server that
// asks for no token: by its Origin, or by a Host that is no name of this machine
// where the connection is of this machine (a page whose name was made to lead here).
// The check and the reset of a key are as simple as a link or an image.
func ownPage(r *http.Request) error {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return fmt.Errorf("%w: it comes from a page of another site, and this server has no tokens", api.ErrForbidden)
	}
	if origin := r.Header.Get("Origin"); origin != "" && !strings.EqualFold(hostOf(origin), r.Host) {
		return fmt.Errorf("%w: it comes from a page of %s, and this server has no tokens", api.ErrForbidden,
			api.Shorten(origin))
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil || !isLoopback(local.String()) || isLoopback(r.Host) {
		return nil
	}
	return fmt.Errorf(
		"%w: the Host is %s, expected localhost or 127.0.0.1: this server has no tokens and answers this machine "+
			"alone", api.ErrForbidden, api.Shorten(r.Host))
}

// hostOf is HOST:PORT of an Origin, empty where it has none ("null").
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

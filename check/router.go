package check

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// Route is one thing that can be asked for over HTTP.
type Route struct {
	Method string // GET also answers HEAD
	// Path as it stands in the request line. One that ends in "/" is the
	// beginning of a path: what follows it is a key, which may hold anything.
	Path string
	// Scope that a token must have. Open needs no token, and must tell nothing.
	Scope Scope
	Open  bool
	Serve http.Handler
}

// Router hands requests on to routes, if Tokens let them. It is no ServeMux,
// because that one tidies paths up before it looks (a key may be ".." or hold
// "//"), and because whatever is not there must not answer without a token either.
type Router struct {
	tokens *Tokens
	exact  map[string][]Route // path → its methods
	begins []Route
}

// NewRouter makes a router; nil tokens let everybody in.
func NewRouter(tokens *Tokens, routes ...Route) *Router {
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
	scope, open := ScopeAny, false
	if i >= 0 {
		scope, open = at[i].Scope, at[i].Open
	}
	if !open {
		if err := x.tokens.Allow(bearerOf(r.Header), scope); err != nil {
			challenge(w.Header(), r.Header, err, scope)
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
		writeJSON(w, "application/problem+json", http.StatusNotFound, api.Problem{Type: "about:blank", Title: "Not found",
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

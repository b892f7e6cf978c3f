package httpmw

import (
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/forwarded"
	"github.com/streamcounter/streamcounter/internal/gate"
)

// KeyFunc gives the key of a request, and false where it has none.
type KeyFunc func(*http.Request) (key string, ok bool)

// Header is the value of a header after a prefix, as in Header("X-Api-Key", "key:").
// A request without it has no key. What clients may set freely limits nobody: use a
// header that whoever stands in front has checked.
func Header(name, prefix string) KeyFunc {
	return func(r *http.Request) (string, bool) {
		v := r.Header.Get(name)
		return prefix + v, v != ""
	}
}

// ClientAddress is the address of the client after a prefix, as in
// ClientAddress("ip:", trusted...): an IPv4 address, or the /64 of an IPv6 one. Behind
// trusted proxies it is the right-most address of X-Forwarded-For that is none of
// theirs: what stands left of it anybody can have written. Where nobody says which
// address asks (a trusted proxy without X-Forwarded-For, say) the request is refused
// with 400, as all of the proxy's clients would share one limit.
func ClientAddress(prefix string, trusted ...netip.Prefix) KeyFunc {
	return func(r *http.Request) (string, bool) {
		a, err := forwarded.Client(r, trusted)
		if err != nil {
			return "", true // no key can be counted: it is refused
		}
		return prefix + gate.Address(a), true
	}
}

// PathPrefix is the first n segments of the path after a prefix: of /v1/users/42 and
// 2, "path:/v1/users" for PathPrefix("path:", 2).
func PathPrefix(prefix string, n int) KeyFunc {
	return func(r *http.Request) (string, bool) {
		segments := strings.SplitN(strings.TrimPrefix(path.Clean("/"+r.URL.Path), "/"), "/", n+1)
		return prefix + "/" + strings.Join(segments[:min(n, len(segments))], "/"), true
	}
}

// First is the key of the first function that has one.
func First(fs ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, bool) {
		for _, f := range fs {
			if key, ok := f(r); ok {
				return key, true
			}
		}
		return "", false
	}
}

// Paths skips requests for one of these, or below it where it ends in a slash.
func Paths(list ...string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		at := path.Clean("/" + r.URL.Path) // /healthz/../orders is /orders
		return slices.ContainsFunc(list, func(p string) bool {
			return at == p || strings.HasSuffix(p, "/") && strings.HasPrefix(at+"/", p)
		})
	}
}

// Methods skips requests with one of these, as in Methods("OPTIONS").
func Methods(list ...string) func(*http.Request) bool {
	return func(r *http.Request) bool { return slices.Contains(list, r.Method) }
}

// Addresses skips requests of clients within one of these networks; trusted as for ClientAddress.
func Addresses(within []netip.Prefix, trusted ...netip.Prefix) func(*http.Request) bool {
	return func(r *http.Request) bool {
		a, err := forwarded.Client(r, trusted)
		return err == nil && slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(a) })
	}
}

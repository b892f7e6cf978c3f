package httpmw

import (
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/forwarded"
)

// KeyFunc returns the key of a request, and false if it has none.
type KeyFunc func(*http.Request) (key string, ok bool)

// Header makes a key of a prefix and the value of a header, as in Header("X-Api-Key", "key:"). A request without the
// header, or with an empty one, has no key. One with the header twice is refused with 400, because the handler could
// read the other value. A header that clients can set freely limits nobody: use one that a proxy in front has checked.
func Header(name, prefix string) KeyFunc {
	if http.CanonicalHeaderKey(name) == "Host" { // net/http moves it
		return func(r *http.Request) (string, bool) { return prefix + r.Host, r.Host != "" }
	}
	return func(r *http.Request) (string, bool) {
		values := r.Header.Values(name)
		if len(values) > 1 {
			return "", true // the empty key cannot be counted: the request is refused
		}
		return prefix + r.Header.Get(name), len(values) == 1 && values[0] != ""
	}
}

// ClientAddress makes a key of a prefix and the address of the client, as in ClientAddress("ip:", trusted...): an
// IPv4 address, or the /64 of an IPv6 address. Behind trusted proxies it is the right-most address of X-Forwarded-For
// that is not one of theirs, because anybody can write what is left of it. If the address of the client is not known
// (for example, a trusted proxy sends no X-Forwarded-For), the request is refused with 400, because all of the
// proxy's clients would share one limit.
func ClientAddress(prefix string, trusted ...netip.Prefix) KeyFunc {
	return func(r *http.Request) (string, bool) {
		a, err := forwarded.Client(r, trusted)
		if err != nil {
			return "", true // the empty key cannot be counted: the request is refused
		}
		return prefix + forwarded.Caller(a, forwarded.CallerBits), true
	}
}

// PathPrefix makes a key of a prefix and the first n segments of the path: PathPrefix("path:", 2) makes
// "path:/v1/users" of /v1/users/42 and /v1;x=1/users. A request whose path has a segment .., in any spelling, is
// refused with 400, because the handler could resolve it in another way.
func PathPrefix(prefix string, n int) KeyFunc {
	return func(r *http.Request) (string, bool) {
		if forwarded.HasDotDot(r.URL.Path) {
			return "", true // the empty key cannot be counted
		}
		return prefix + forwarded.Segments(r.URL.Path, max(n, 0)), true
	}
}

// First returns the key of the first function that has one.
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

// Paths skips requests for one of these paths, but none with a segment .. in it. A path that ends in a slash includes
// all paths below it.
func Paths(list ...string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		at := path.Clean("/" + r.URL.Path)
		return !forwarded.HasDotDot(r.URL.Path) && slices.ContainsFunc(list, func(p string) bool {
			return at == p || strings.HasSuffix(p, "/") && strings.HasPrefix(at+"/", p)
		})
	}
}

// Methods skips requests with one of these methods, as in Methods("OPTIONS").
func Methods(list ...string) func(*http.Request) bool {
	return func(r *http.Request) bool { return slices.Contains(list, r.Method) }
}

// Addresses skips requests of clients within one of these networks; trusted is as for ClientAddress.
func Addresses(within []netip.Prefix, trusted ...netip.Prefix) func(*http.Request) bool {
	return func(r *http.Request) bool {
		a, err := forwarded.Client(r, trusted)
		return err == nil && forwarded.Within(within, a)
	}
}

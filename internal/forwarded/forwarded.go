// Package forwarded finds the address of a client behind proxies and judges paths, for the server's extractors and for
// the middleware.
package forwarded

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// errUnknown means that no proxy says which address the client has.
var errUnknown = errors.New("the client's address is not known")

// Client returns the first address that is not a trusted proxy: it begins with the peer of the connection, and goes
// through X-Forwarded-For from right to left. Anybody can write what is left of that address. If a trusted proxy sends
// no address, the error wraps errUnknown, because with the address of the proxy all of its clients would share one
// limit.
func Client(r *http.Request, trusted []netip.Prefix) (netip.Addr, error) {
	addr, err := parse(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: the connection has no address", errUnknown)
	}
	if !Within(trusted, addr) {
		return addr, nil
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		hop = strings.TrimSpace(hop)
		if hop == "" && len(hops) == 1 {
			return netip.Addr{}, fmt.Errorf("%w: no X-Forwarded-For from the trusted proxy %s", errUnknown, addr)
		}
		if addr, err = parse(hop); err != nil {
			return netip.Addr{}, fmt.Errorf("%w: X-Forwarded-For has %s, which is not an address", errUnknown,
				api.Shorten(hop))
		}
		if !Within(trusted, addr) {
			break
		}
	}
	return addr, nil
}

// plain returns an address as it is compared and counted: an IPv4 address within IPv6 as IPv4, and without a zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Caller returns the part of an address that identifies one client: an IPv4 address, or a network of so many bits of an
// IPv6 address, because a client that has one address of a /64 has all of them.
func Caller(a netip.Addr, bits int) string {
	if a = plain(a); a.Is6() && bits < a.BitLen() {
		return netip.PrefixFrom(a, bits).Masked().String()
	}
	return a.String()
}

// CallerBits is how many bits of an IPv6 address identify one client, unless the configuration says otherwise.
const CallerBits = 64

// ParseNetwork reads a network or one address. Those of IPv4 within IPv6 become IPv4.
func ParseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = plain(a)
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if p = api.Unmapped(p); err == nil && p.Addr().Is4In6() {
		return p, errors.New("it has more than all IPv4 addresses within IPv6")
	}
	return p.Masked(), err
}

// parse reads an address with or without a port.
func parse(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap.Addr()), nil
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return plain(a), err
}

// Within reports whether an address is in one of the networks, which may be of IPv4 within IPv6.
func Within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return api.Unmapped(p).Contains(a) })
}

// dotDot is a segment .. in any spelling, with parameters or without.
var dotDot = regexp.MustCompile(`(?i)(^|[/\\]|%2f|%5c)(\.|%2e){2}([/\\;#?]|%(2f|5c|3b|23|3f)|$)`)

// HasDotDot reports whether a path, decoded or not, has a segment that some server takes for a parent directory.
// Clients resolve these before they send a path. Servers disagree about one that arrives.
func HasDotDot(path string) bool { return dotDot.MatchString(path) }

// parameters are the parameters of a path's segment (RFC 3986, 3.3), which many backends remove.
var parameters = regexp.MustCompile(`;[^/]*`)

// Segments returns the first n segments of a decoded path, as a server would understand it: "/a" for //a/, /./a,
// /a;x=1 and \\a. Otherwise a limit could be avoided with another form of the path.
func Segments(p string, n int) string {
	p = path.Clean("/" + parameters.ReplaceAllString(strings.ReplaceAll(p, `\`, "/"), ""))
	all := strings.Split(p[1:], "/")
	return "/" + strings.Join(all[:min(n, len(all))], "/")
}

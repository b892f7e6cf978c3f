// Package forwarded finds the address of a client behind proxies, for the server's extractors and for the middleware.
package forwarded

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// errUnknown means that no proxy says which address the client has.
var errUnknown = errors.New("the client's address is not known")

// Client returns the address that the outermost trusted proxy saw: from the connection's own peer outwards, the first
// that is not a trusted proxy. Strangers wrote what is beyond it in X-Forwarded-For. If a trusted proxy says nothing,
// or something that is not an address, the error wraps errUnknown. The proxy's own address would be one limit for all
// of its clients.
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

// Plain returns an address as it is compared and counted: an IPv4 address within IPv6 as IPv4, and without a zone.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// parse reads an address with or without a port.
func parse(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return Plain(ap.Addr()), nil
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return Plain(a), err
}

// Within reports whether an address is in one of the networks, which may be of IPv4 within IPv6.
func Within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return api.Unmapped(p).Contains(a) })
}

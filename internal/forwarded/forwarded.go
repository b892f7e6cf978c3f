// Package forwarded tells which address asks behind proxies: for the server's
// extractors and for the middleware alike.
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

// errUnknown: nobody says which address asks.
var errUnknown = errors.New("the client's address is not known")

// Client is the address that the outermost trusted proxy saw: from the
// connection's own peer outwards, the first that is no trusted proxy. What stands
// beyond it in X-Forwarded-For was written by strangers. Where a trusted proxy says
// nothing, or what is no address, the error wraps errUnknown: in its place the
// proxy's own address would be one limit for all of its clients.
func Client(r *http.Request, trusted []netip.Prefix) (netip.Addr, error) {
	addr, err := parse(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: the connection has no address", errUnknown)
	}
	if !contains(trusted, addr) {
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
		if !contains(trusted, addr) {
			break
		}
	}
	return addr, nil
}

// Plain is an address as it is compared and counted: IPv4 as such, no zone.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// parse reads an address with or without a port.
func parse(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return Plain(ap.Addr()), nil
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return Plain(a), err
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

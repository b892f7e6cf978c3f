package check

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// extractor takes the key, and the cost, from a request that a proxy asks for.
// Fields are as in the file; see parseExtractors for their defaults.
type extractor struct {
	name    string
	from    string // fromHeader, fromAddress or fromPath
	header  string // of the value; that of the path where from is fromPath
	prefix  string // of every key
	hash    bool   // the key has the SHA-256 of the value
	trusted []netip.Prefix
	bits    int64 // of an IPv6 address that make the key
	parts   int64 // of the path that make the key
	cost    string
	pass    bool // allow what has no value
}

// Where a value comes from.
const (
	fromHeader  = "header"
	fromAddress = "client-address"
	fromPath    = "path"
)

// errMissing: the request has not what the key is made of.
var errMissing = errors.New("the key cannot be told")

// request gives what to check; the error wraps errMissing, api.ErrBadKey,
// api.ErrBadCount or api.ErrBadRequest. Whatever the headers hold, a key that is
// given is valid.
func (x *extractor) request(r *http.Request) (api.CheckRequest, error) {
	req := api.CheckRequest{Cost: 1}
	value, err := x.value(r)
	if err != nil {
		return req, fmt.Errorf("extractor %s: %w", x.name, err)
	}
	if x.hash {
		sum := sha256.Sum256([]byte(value))
		value = hex.EncodeToString(sum[:])
	}
	req.Key = x.prefix + value
	if err := api.ValidateKey(req.Key); err != nil {
		return req, fmt.Errorf("extractor %s: %w", x.name, err)
	}
	if x.cost == "" || len(r.Header.Values(x.cost)) == 0 {
		return req, nil
	}
	text, err := one(r.Header, x.cost)
	if err != nil {
		return req, fmt.Errorf("extractor %s: %w", x.name, err)
	}
	if req.Cost, err = strconv.ParseInt(text, 10, 64); err != nil {
		return req, fmt.Errorf("extractor %s: %w: %s: %s is no integer", x.name, api.ErrBadCount, x.cost, api.Shorten(text))
	}
	return req, api.ValidateCount(req.Cost)
}

func (x *extractor) value(r *http.Request) (string, error) {
	switch x.from {
	case fromAddress:
		addr, err := x.client(r)
		if err != nil {
			return "", err
		}
		if addr.Is6() && x.bits < int64(addr.BitLen()) {
			return netip.PrefixFrom(addr, int(x.bits)).Masked().String(), nil
		}
		return addr.String(), nil
	case fromPath:
		uri, err := one(r.Header, x.header)
		if err != nil {
			return "", err
		}
		return x.segments(uri)
	}
	return one(r.Header, x.header)
}

// one is a header's only value. Two would be read in one way here and perhaps in
// another behind the proxy.
func one(h http.Header, name string) (string, error) {
	list := h.Values(name)
	switch {
	case len(list) > 1:
		return "", fmt.Errorf("%w: the header %s stands %d times", api.ErrBadRequest, name, len(list))
	case len(list) == 0 || list[0] == "":
		return "", fmt.Errorf("%w: no header %s", errMissing, name)
	}
	return list[0], nil
}

// client is the address that the outermost proxy of ours saw: from the
// connection's own peer outwards, the first that is no trusted proxy. What stands
// beyond it in X-Forwarded-For was written by strangers.
func (x *extractor) client(r *http.Request) (netip.Addr, error) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%w: the connection has no address", errMissing)
	}
	addr := plain(peer.Addr())
	if !x.trusts(addr) {
		return addr, nil
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop := strings.TrimSpace(hops[i])
		if hop == "" && len(hops) == 1 {
			// The key would be the proxy's own address, for all of its clients.
			return netip.Addr{}, fmt.Errorf("%w: no X-Forwarded-For from the trusted proxy %s", errMissing, addr)
		}
		if addr, err = parseHop(hop); err != nil {
			return netip.Addr{}, fmt.Errorf("%w: X-Forwarded-For has %s, which is no address", errMissing, api.Shorten(hop))
		}
		if !x.trusts(addr) {
			break
		}
	}
	return addr, nil
}

func (x *extractor) trusts(a netip.Addr) bool {
	for _, p := range x.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// parseHop reads an address with or without a port.
func parseHop(s string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return plain(ap.Addr()), nil
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return plain(a), err
}

// plain is an address as it is compared and counted: IPv4 as such, no zone.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// segments are the first parts of a path, as a server would understand it: "/a"
// for //a/, /./a, /%61 and /x/../a alike, or a limit could be walked around.
func (x *extractor) segments(uri string) (string, error) {
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return "", fmt.Errorf("%w: %s is no path", api.ErrBadRequest, api.Shorten(uri))
	}
	clean := path.Clean("/" + u.Path)
	for i, n := 1, int64(0); i < len(clean); i++ {
		if clean[i] == '/' {
			if n++; n == x.parts {
				return clean[:i], nil
			}
		}
	}
	return clean, nil
}

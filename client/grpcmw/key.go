package grpcmw

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/streamcounter/streamcounter/internal/forwarded"
)

// KeyFunc returns the key of a call, and false if it has none. method has the form /pkg.Service/Method.
type KeyFunc func(ctx context.Context, method string) (key string, ok bool)

// Metadata makes a key of a prefix and the value of a metadata entry. A call without the entry, or with an empty one,
// has no key. One with the entry twice is refused with InvalidArgument. An entry that clients can set freely limits
// nobody: use one that a proxy in front has checked.
func Metadata(name, prefix string) KeyFunc {
	return func(ctx context.Context, _ string) (string, bool) {
		values := metadata.ValueFromIncomingContext(ctx, name)
		switch {
		case len(values) > 1:
			return "", true // the empty key cannot be counted: the call is refused
		case len(values) == 0 || values[0] == "":
			return "", false
		}
		return prefix + values[0], true
	}
}

// Peer makes a key of a prefix and the address at the other end of the connection: an IPv4 address, or the /64 of an
// IPv6 address. Behind a proxy it is the address of the proxy.
func Peer(prefix string) KeyFunc {
	return func(ctx context.Context, _ string) (string, bool) {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return "", false
		}
		host, _, err := net.SplitHostPort(p.Addr.String())
		if err != nil {
			return "", false
		}
		a, err := netip.ParseAddr(host)
		if err != nil {
			return "", false
		}
		return prefix + forwarded.Caller(a, forwarded.CallerBits), true
	}
}

// Method makes a key of a prefix and the method, for limits that all callers share.
func Method(prefix string) KeyFunc {
	return func(_ context.Context, method string) (string, bool) { return prefix + method, true }
}

// First returns the key of the first function that has one.
func First(fs ...KeyFunc) KeyFunc {
	return func(ctx context.Context, method string) (string, bool) {
		for _, f := range fs {
			if key, ok := f(ctx, method); ok {
				return key, true
			}
		}
		return "", false
	}
}

package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/forwarded"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

// extractor takes the key, and the cost, from a request that a proxy asks for.
// Fields are as in the file; see parseExtractors for their defaults.
type extractor struct {
	name    string
	from    string // fromHeader, fromAddress or fromPath
	header  string // of the value; if from is fromPath, of the path
	prefix  string // of every key
	hash    bool   // the key has the SHA-256 of the value
	trusted []netip.Prefix
	bits    int64 // of an IPv6 address that make the key
	parts   int64 // of the path that make the key
	cost    string
	pass    bool // allow requests without a value
}

// The sources of a value.
const (
	fromHeader  = "header"
	fromAddress = "client-address"
	fromPath    = "path"
)

// The errors of an extractor besides those of a key or a cost.
var (
	// ErrMissing: the request does not have what the key is made of.
	ErrMissing = errors.New("the key cannot be determined")
	// ErrNoExtractor: no extractor has this name.
	ErrNoExtractor = fmt.Errorf("%w: no extractor", api.ErrBadRequest)
)

// request returns what to check; the error wraps ErrMissing, api.ErrBadKey, api.ErrBadCount or api.ErrBadRequest. A
// key that is returned without an error is valid, whatever the headers hold.
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
	if err != nil && !errors.Is(err, ErrMissing) { // ParseCount refuses an empty header
		return req, fmt.Errorf("extractor %s: %w", x.name, err)
	}
	if req.Cost, err = api.ParseCount(text); err != nil {
		return req, fmt.Errorf("extractor %s: %s: %w", x.name, x.cost, err)
	}
	return req, nil
}

func (x *extractor) value(r *http.Request) (string, error) {
	switch x.from {
	case fromAddress:
		addr, err := forwarded.Client(r, x.trusted)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrMissing, err)
		}
		tracing.SetClient(r.Context(), addr.String())
		return forwarded.Caller(addr, int(x.bits)), nil
	case fromPath:
		uri, err := one(r.Header, x.header)
		if err != nil {
			return "", err
		}
		return x.segments(uri)
	}
	return one(r.Header, x.header)
}

// one returns a header's only value. Two values could be read in one way here and in another way behind the proxy.
func one(h http.Header, name string) (string, error) {
	list := h.Values(name)
	switch {
	case len(list) > 1:
		return "", fmt.Errorf("%w: the header %s is given %d times", api.ErrBadRequest, name, len(list))
	case len(list) == 0 || list[0] == "":
		return "", fmt.Errorf("%w: no header %s", ErrMissing, name)
	}
	return list[0], nil
}

// segments returns the first parts of a path, decoded and cut at #.
func (x *extractor) segments(uri string) (string, error) {
	if p, _, _ := strings.Cut(uri, "?"); forwarded.HasDotDot(p) {
		return "", fmt.Errorf("%w: the path %s has a .., which servers resolve differently", api.ErrBadRequest,
			api.Shorten(uri))
	}
	uri, _, _ = strings.Cut(uri, "#") // as nginx does
	u, err := url.ParseRequestURI(uri)
	if err != nil {
		return "", fmt.Errorf("%w: %s is not a path", api.ErrBadRequest, api.Shorten(uri))
	}
	return forwarded.Segments(u.Path, int(x.parts)), nil
}

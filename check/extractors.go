package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/reload"
)

// Extractors say how GET /v1/check?extractor=NAME takes the key from the
// request that a proxy asks for. A nil one knows none.
type Extractors struct {
	files *reload.Files[map[string]*extractor]
}

// NewExtractors loads the extractors of the YAML file at path:
//
//	extractors:
//	  - name: by-address
//	    from: client-address
//	    prefix: "ip:"
//	    trusted_proxies: [127.0.0.1/32, 10.0.0.0/8]
//
// Run and Reload keep them fresh.
func NewExtractors(path string, log *slog.Logger) (*Extractors, error) {
	files, err := reload.Open("extractors", log, func(contents [][]byte) (map[string]*extractor, error) {
		return parseExtractors(path, contents[0])
	}, path)
	if err != nil {
		return nil, err
	}
	return &Extractors{files}, nil
}

// Reload reads the file again; on an error the present ones stay.
func (e *Extractors) Reload() error { return e.files.Reload() }

// OnReload sets what is called after each attempt to reload.
func (e *Extractors) OnReload(outcome func(error)) { e.files.OnReload(outcome) }

// Run reloads the file when it has changed, until ctx ends.
func (e *Extractors) Run(ctx context.Context, tick <-chan time.Time) { e.files.Run(ctx, tick) }

func (e *Extractors) find(name string) (*extractor, error) {
	if e != nil {
		if x := e.files.Value()[name]; x != nil {
			return x, nil
		}
	}
	return nil, fmt.Errorf("%w: no extractor %s", api.ErrBadRequest, api.Shorten(name))
}

// extracted answers GET /v1/check?extractor=NAME.
func (s *Service) extracted(w http.ResponseWriter, r *http.Request, name string, denyStatus int) {
	x, err := s.config.Extractors.find(name)
	if err != nil {
		writeProblem(w, err)
		return
	}
	req, err := x.request(r)
	switch {
	case errors.Is(err, errMissing) && x.pass:
		writeJSON(w, "application/json", http.StatusOK, api.CheckAnswer{Allowed: true, Cost: 1, Windows: []api.WindowState{}, Source: api.SourcePolicy, Note: err.Error() + "; it lets such requests pass"})
	case errors.Is(err, errMissing):
		writeProblem(w, fmt.Errorf("%w: %w", api.ErrBadRequest, err))
	case err != nil:
		writeProblem(w, err)
	default:
		s.one(w, r, req, denyStatus)
	}
}

const (
	wantExtractors = "extractors, a list of name, from, and, as from needs them, header, prefix, hash, trusted_proxies, ipv6_prefix, segments, cost_header, missing"
	maxExtractors  = 1000
)

type extractorsFile struct {
	Extractors []struct {
		Name       text   `yaml:"name"`
		From       text   `yaml:"from"`
		Header     text   `yaml:"header"`
		Prefix     text   `yaml:"prefix"`
		Hash       text   `yaml:"hash"`
		Trusted    []text `yaml:"trusted_proxies"`
		IPv6Prefix number `yaml:"ipv6_prefix"`
		Segments   number `yaml:"segments"`
		CostHeader text   `yaml:"cost_header"`
		Missing    text   `yaml:"missing"`
	} `yaml:"extractors"`
}

// headerForm is a header's name (RFC 9110, a token).
var headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")

// parseExtractors reads a file strictly: what an extractor would not use is an error.
func parseExtractors(name string, data []byte) (map[string]*extractor, error) {
	f := yamlFile{name}
	var in extractorsFile
	if err := f.decode(data, &in, wantExtractors); err != nil {
		return nil, err
	}
	if len(in.Extractors) == 0 || len(in.Extractors) > maxExtractors {
		return nil, f.errorf(nil, "there are %d extractors: want 1 to %d", len(in.Extractors), maxExtractors)
	}
	out := map[string]*extractor{}
	for i, e := range in.Extractors {
		if !nameForm.MatchString(e.Name.value) {
			return nil, f.errorf(e.Name.at, "extractors[%d]: want a name of a-z, 0-9 and -, 1 to 64 of them", i)
		}
		if out[e.Name.value] != nil {
			return nil, f.errorf(e.Name.at, "the name %s stands there twice", e.Name.value)
		}
		x := &extractor{name: e.Name.value, from: e.From.value, header: e.Header.value, prefix: e.Prefix.value, cost: e.CostHeader.value, bits: 64, parts: 1}
		bad := func(t text, format string, args ...any) error {
			return f.errorf(t.at, "extractor "+x.name+": "+format, args...)
		}
		if !slices.Contains([]string{fromHeader, fromAddress, fromPath}, x.from) {
			return nil, bad(e.From, "from: want %s, %s or %s", fromHeader, fromAddress, fromPath)
		}
		// What each source uses of the fields that not all do.
		for _, c := range []struct {
			field text
			name  string
			of    string
		}{
			{e.Header, "header", fromHeader + " " + fromPath}, {e.Hash, "hash", fromHeader}, {text{at: e.Segments.at}, "segments", fromPath}, {text{at: e.IPv6Prefix.at}, "ipv6_prefix", fromAddress},
		} {
			if c.field.at != nil && !strings.Contains(c.of, x.from) {
				return nil, bad(c.field, "%s is of no use with from: %s", c.name, x.from)
			}
		}
		if x.from == fromPath && e.Header.at == nil {
			x.header = "X-Forwarded-Uri" // as Traefik and Caddy name it
		}
		if x.from != fromAddress && !headerForm.MatchString(x.header) {
			return nil, bad(e.Header, "header: want the name of a header")
		}
		if x.cost != "" && !headerForm.MatchString(x.cost) {
			return nil, bad(e.CostHeader, "cost_header: want the name of a header")
		}
		if err := api.ValidateKey(x.prefix + "x"); err != nil || len(x.prefix) > 256 {
			return nil, bad(e.Prefix, "prefix: want up to 256 bytes that may begin a key")
		}
		if e.IPv6Prefix.at != nil {
			if x.bits = e.IPv6Prefix.value; x.bits < 1 || x.bits > 128 {
				return nil, bad(text{at: e.IPv6Prefix.at}, "ipv6_prefix: want 1 to 128 bits")
			}
		}
		if e.Segments.at != nil {
			if x.parts = e.Segments.value; x.parts < 1 || x.parts > 16 {
				return nil, bad(text{at: e.Segments.at}, "segments: want 1 to 16")
			}
		}
		switch e.Hash.value {
		case "", "false":
		case "true":
			x.hash = true
		default:
			return nil, bad(e.Hash, "hash: want true or false")
		}
		switch e.Missing.value {
		case "", "refuse":
		case "allow":
			x.pass = true
		default:
			return nil, bad(e.Missing, "missing: want refuse or allow")
		}
		if (len(e.Trusted) > 0) != (x.from == fromAddress) {
			return nil, bad(e.From, "trusted_proxies: want those that ask, as [10.0.0.0/8], with from: %s, and with it alone", fromAddress)
		}
		for _, t := range e.Trusted {
			p, err := parseNetwork(t.value)
			if err != nil {
				return nil, bad(t, "trusted_proxies: want networks or addresses, as 10.0.0.0/8, ::1")
			}
			x.trusted = append(x.trusted, p)
		}
		out[x.name] = x
	}
	return out, nil
}

func parseNetwork(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = plain(a)
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}

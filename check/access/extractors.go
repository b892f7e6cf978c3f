package access

import (
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/forwarded"
	"github.com/streamcounter/streamcounter/internal/reload"
)

// extractorFiles reloads the file, as tokenFiles does.
type extractorFiles = reload.Files[map[string]*extractor]

// Extractors say how GET /v1/check?extractor=NAME takes the key from the request that a proxy asks for. A nil
// *Extractors has none.
type Extractors struct {
	*extractorFiles
}

// NewExtractors loads the extractors of the YAML file at path:
//
//	extractors:
//	  - name: by-address
//	    from: client-address
//	    prefix: "ip:"
//	    trusted_proxies: [127.0.0.1/32, 10.0.0.0/8]
//
// Run and Reload keep them up to date.
func NewExtractors(path string, log *slog.Logger) (*Extractors, error) {
	files, err := reload.Open("extractors", log, func(files []reload.File) (map[string]*extractor, error) {
		return parseExtractors(path, files[0].Data)
	}, path)
	if err != nil {
		return nil, err
	}
	return &Extractors{files}, nil
}

// Extract takes the key, and the cost, by the extractor of this name. If the request does not have what the key is
// made of, the error wraps ErrMissing, and pass says whether the extractor lets such requests pass. Other errors wrap
// ErrNoExtractor, api.ErrBadKey, api.ErrBadCount or api.ErrBadRequest.
func (e *Extractors) Extract(name string, r *http.Request) (req api.CheckRequest, pass bool, err error) {
	var x *extractor
	if e != nil {
		x = e.Value()[name]
	}
	if x == nil {
		return req, false, fmt.Errorf("%w %s", ErrNoExtractor, api.Shorten(name))
	}
	req, err = x.request(r)
	return req, x.pass, err
}

const maxExtractors = 1000

// headerForm is a header's name (RFC 9110, a token).
var headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")

// extractorEntry is one extractor as it is in the file.
type extractorEntry struct {
	*extractor
	missing string
	proxies []string
}

func (e *extractorEntry) fields(d *document.Document) document.Setter {
	return d.Mapping(
		document.Field{Name: "name", Need: document.Needed, Set: document.Leaf(d, &e.name, document.Text)},
		document.Field{Name: "from", Need: document.Needed, Set: document.Leaf(d, &e.from, document.Text)},
		document.Field{Name: "header", Set: document.Leaf(d, &e.header, document.Text)},
		document.Field{Name: "prefix", Set: document.Leaf(d, &e.prefix, document.Text)},
		document.Field{Name: "hash", Set: document.Leaf(d, &e.hash, document.Truth)},
		document.Field{Name: "trusted_proxies", Set: document.Leaves(d, &e.proxies, document.Text)},
		document.Field{Name: "ipv6_prefix", Set: document.Leaf(d, &e.bits, document.Within(1, 128))},
		document.Field{Name: "segments", Set: document.Leaf(d, &e.parts, document.Within(1, maxSegments))},
		document.Field{Name: "cost_header", Set: document.Leaf(d, &e.cost, document.Text)},
		document.Field{Name: "missing", Set: document.Leaf(d, &e.missing, document.Text)},
	)
}

const maxSegments = 16

// parseExtractors reads a file strictly: a field that an extractor would not use is an error.
func parseExtractors(name string, data []byte) (map[string]*extractor, error) {
	var list []*extractorEntry
	d, err := document.Read(name, data, "extractors, a list", func(d *document.Document) document.Setter {
		return d.Mapping(document.Field{Name: "extractors", Need: document.Needed,
			Set: d.List(func(n *document.Node, at string) error {
				e := &extractorEntry{extractor: &extractor{bits: forwarded.CallerBits, parts: 1}}
				list = append(list, e)
				return e.fields(d)(n, at)
			})})
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || len(list) > maxExtractors {
		return nil, d.ErrorAt("extractors", "there are %d extractors: want 1 to %d", len(list), maxExtractors)
	}
	out := map[string]*extractor{}
	for i, e := range list {
		at := fmt.Sprintf("extractors[%d].", i)
		if !nameForm.MatchString(e.name) {
			return nil, d.ErrorAt(at+"name", "name %q: want 1 to 64 of a-z, 0-9 and -", e.name)
		}
		if out[e.name] != nil {
			return nil, d.ErrorAt(at+"name", "the name %s is given twice", e.name)
		}
		if err := e.complete(d, at); err != nil {
			return nil, err
		}
		out[e.name] = e.extractor
	}
	return out, nil
}

// usedBy: field → the sources that use it.
var usedBy = []struct {
	field string
	from  []string
}{
	{"header", []string{fromHeader, fromPath}}, {"hash", []string{fromHeader}}, {"segments", []string{fromPath}},
	{"ipv6_prefix", []string{fromAddress}}, {"trusted_proxies", []string{fromAddress}},
}

// complete fills in defaults, and refuses fields that do not fit together.
func (e *extractorEntry) complete(d *document.Document, at string) error {
	bad := func(field, format string, args ...any) error {
		return d.ErrorAt(at+field, "%s of extractor %s: "+format, append([]any{field, e.name}, args...)...)
	}
	if !slices.Contains([]string{fromHeader, fromAddress, fromPath}, e.from) {
		return bad("from", "%q: want %s, %s or %s", e.from, fromHeader, fromAddress, fromPath)
	}
	for _, u := range usedBy {
		if d.Line(at+u.field) != 0 && !slices.Contains(u.from, e.from) {
			return bad(u.field, "it is of no use with from: %s", e.from)
		}
	}
	if e.from == fromPath && d.Line(at+"header") == 0 {
		e.header = "X-Forwarded-Uri" // as Traefik and Caddy name it
	}
	switch {
	case e.from == fromHeader && d.Line(at+"header") == 0:
		return bad("from", "header: want the name of the header as header")
	case e.from != fromAddress && !headerForm.MatchString(e.header):
		return bad("header", "%q: want the name of a header", e.header)
	case e.cost != "" && !headerForm.MatchString(e.cost):
		return bad("cost_header", "%q: want the name of a header", e.cost)
	case e.from == fromAddress && len(e.proxies) == 0:
		return bad("from", "%s: want the addresses of your proxies as trusted_proxies, as [10.0.0.0/8]", fromAddress)
	case !slices.Contains([]string{"", "refuse", "allow"}, e.missing):
		return bad("missing", "%q: want refuse or allow", e.missing)
	}
	if err := api.ValidateKey(e.prefix + "x"); err != nil || len(e.prefix) > api.MaxKeyBytes/2 {
		return bad("prefix", "want up to %d bytes of what may begin a key", api.MaxKeyBytes/2)
	}
	e.pass = e.missing == "allow"
	for i, text := range e.proxies {
		network, err := forwarded.ParseNetwork(text)
		if err != nil {
			return bad(fmt.Sprintf("trusted_proxies[%d]", i), "%q: want a network or an address, as 10.0.0.0/8, ::1",
				text)
		}
		e.trusted = append(e.trusted, network)
	}
	return nil
}

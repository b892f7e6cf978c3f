package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/windows"
)

// maxDepth is how deep descriptors may be nested, and so how many entries of a
// request can match.
const maxDepth = 16

// file is one file of a configuration, or one resource of an xDS server, with what
// later steps need to say where a mistake is.
type file struct {
	*document.Document // nil: a resource
	name               string
	domain             string
	onDeny             string // of the limits that have none; empty: the option's
	descriptors        []*descriptor
	unknown            []string // fields of a resource that are not known here
	refused            []error  // parts of a resource that are not taken
}

// descriptor is one descriptor as the file has it. at is its name from the top.
type descriptor struct {
	in                   *file // descriptors of several files can be in one domain
	at                   string
	key, value           string
	limit                *rateLimit
	shadow, quota, share bool
	// These choose the labels of its metrics (detailed_metric, value_to_metric).
	detailed, valueInLabel bool
	metadata               *structpb.Struct // for the answer's dynamic metadata; nil: none
	onDeny                 string           // empty: the domain's
	nested                 []*descriptor
}

type rateLimit struct {
	unit       string
	perUnit    int64 // -1: not given
	multiplier int64
	unlimited  bool
	name       string
	replaces   []string

	// per is the window, and wire the unit as the service has it; set by check.
	per  time.Duration
	wire rlsv3.RateLimitResponse_RateLimit_Unit
}

// readFile reads one file. It accepts the files that envoyproxy/ratelimit reads. It refuses a file that
// envoyproxy/ratelimit would refuse, or would read with another meaning.
func readFile(name string, data []byte) (*file, error) {
	f := &file{name: name}
	_, err := document.Read(name, data, "domain and descriptors", func(d *document.Document) document.Setter {
		f.Document = d
		return d.Mapping(
			document.Field{Name: "domain", Need: document.Needed, Set: document.Leaf(d, &f.domain, document.Text)},
			document.Field{Name: "on_deny", Set: document.Leaf(d, &f.onDeny, onDeny)},
			document.Field{Name: "descriptors", Set: f.list(&f.descriptors, 1)},
		)
	})
	if err != nil {
		return nil, err
	}
	return f, f.checkDomain()
}

func (f *file) checkDomain() error {
	switch f.domain {
	case "":
		return f.ErrorAt("domain", `domain "": want a name`)
	case ownDomain:
		return f.ErrorAt("domain",
			"domain %q is kept for keys that are asked for as they are: the rules file has their limits", ownDomain)
	}
	return nil
}

func (f *file) list(to *[]*descriptor, depth int) document.Setter {
	return func(n *document.Node, at string) error {
		if depth > maxDepth {
			return f.Errorf(n, "descriptors nested deeper than %d", maxDepth)
		}
		return f.List(func(n *document.Node, at string) error {
			r := &descriptor{in: f, at: at}
			if err := f.descriptor(r, depth)(n, at); err != nil {
				return err
			}
			*to = append(*to, r)
			return f.check(r)
		})(n, at)
	}
}

func (f *file) descriptor(r *descriptor, depth int) document.Setter {
	type field = document.Field
	return f.Mapping(
		field{Name: "key", Need: document.Needed, Set: document.Leaf(f.Document, &r.key, document.Text)},
		field{Name: "value", Set: document.Leaf(f.Document, &r.value, document.Text)},
		field{Name: "rate_limit", Set: func(n *document.Node, at string) error {
			r.limit = &rateLimit{perUnit: -1, multiplier: 1}
			return f.rateLimit(r.limit)(n, at)
		}},
		field{Name: "descriptors", Set: f.list(&r.nested, depth+1)},
		field{Name: "shadow_mode", Set: document.Leaf(f.Document, &r.shadow, truth)},
		field{Name: "quota_mode", Set: document.Leaf(f.Document, &r.quota, truth)},
		field{Name: "share_threshold", Set: document.Leaf(f.Document, &r.share, truth)},
		// Only streamcounter has on_deny: envoyproxy/ratelimit always charges what it denies.
		field{Name: "on_deny", Set: document.Leaf(f.Document, &r.onDeny, onDeny)},
		field{Name: "detailed_metric", Set: document.Leaf(f.Document, &r.detailed, truth)},
		field{Name: "value_to_metric", Set: document.Leaf(f.Document, &r.valueInLabel, truth)},
		field{Name: "metadata", Set: func(n *document.Node, at string) (err error) {
			if !document.IsMapping(n) {
				return f.Errorf(n, "metadata: want a mapping")
			}
			r.metadata, err = f.metadata(n)
			return err
		}},
	)
}

func (f *file) rateLimit(r *rateLimit) document.Setter {
	type field = document.Field
	return f.Mapping(
		field{Name: "unit", Set: document.Leaf(f.Document, &r.unit, document.Text)},
		field{Name: "requests_per_unit",
			Set: document.Leaf(f.Document, &r.perUnit, document.Within(0, math.MaxUint32))},
		field{Name: "unlimited", Set: document.Leaf(f.Document, &r.unlimited, truth)},
		field{Name: "name", Set: document.Leaf(f.Document, &r.name, document.Text)},
		field{Name: "replaces", Set: f.List(func(n *document.Node, at string) error {
			var name string
			err := f.Mapping(field{Name: "name", Need: document.Needed,
				Set: document.Leaf(f.Document, &name, document.Text)})(n, at)
			r.replaces = append(r.replaces, name)
			return err
		})},
		field{Name: "unit_multiplier",
			Set: document.Leaf(f.Document, &r.multiplier, document.Within(1, math.MaxUint32))},
	)
}

// metadata reads a mapping of any values in the form of the answer's metadata.
func (f *file) metadata(n *document.Node) (*structpb.Struct, error) {
	tree, err := f.Tree(n)
	if err != nil {
		return nil, err
	}
	fields, _ := tree.(map[string]any)
	out, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, f.Errorf(n, "metadata: want text, numbers, truths, lists and mappings")
	}
	return out, nil
}

// ErrorAt returns an error about a field: for a file with line and column, for a resource with its name.
func (f *file) ErrorAt(field, format string, args ...any) error {
	if f.Document != nil {
		return f.Document.ErrorAt(field, format, args...)
	}
	return fmt.Errorf("resource %q: %s: %w", f.name, field, fmt.Errorf(format, args...))
}

// place returns where a descriptor is, as seen from f.
func (f *file) place(r *descriptor) string {
	switch {
	case r.in.Document == nil && r.in == f:
		return r.at
	case r.in.Document == nil:
		return fmt.Sprintf("%s of resource %q", r.at, r.in.name)
	case r.in == f:
		return fmt.Sprintf("line %d", f.Line(r.at))
	}
	return fmt.Sprintf("%s, line %d", r.in.name, r.in.Line(r.at))
}

// truth accepts the words for true and false of YAML 1.1, which envoyproxy/ratelimit reads. In quotes they are text,
// there too.
func truth(n *document.Node) (bool, error) {
	switch {
	case !document.IsPlain(n):
	case slices.Contains([]string{"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"}, n.Value):
		return true, nil
	case slices.Contains([]string{"n", "N", "no", "No", "NO", "off", "Off", "OFF"}, n.Value):
		return false, nil
	}
	return document.Truth(n)
}

// onDeny accepts the values of a rule's on_deny.
func onDeny(n *document.Node) (string, error) {
	if n.Value != string(windows.OnDenySkip) && n.Value != string(windows.OnDenyCharge) {
		return "", fmt.Errorf("%s or %s", windows.OnDenySkip, windows.OnDenyCharge)
	}
	return n.Value, nil
}

// check finds mistakes in one descriptor whose form is right.
func (f *file) check(r *descriptor) error {
	switch {
	case r.key == "":
		return f.ErrorAt(r.at+".key", `key "": want a name`)
	case r.share && !strings.Contains(r.value, "*"):
		return f.ErrorAt(r.at+".share_threshold",
			"share_threshold: want a value with a *, whose values then share one count")
	case r.limit == nil:
		return nil
	}
	at, l := r.at+".rate_limit", r.limit
	for i, name := range l.replaces {
		at := fmt.Sprintf("%s.replaces[%d].name", at, i)
		if name == "" {
			return f.ErrorAt(at, `name "": want the name of the limit to replace`)
		}
		if name == l.name {
			return f.ErrorAt(at, "name %q: a limit cannot replace itself", name)
		}
	}
	if l.unlimited {
		if l.unit != "" {
			return f.ErrorAt(at+".unit", "unit %q: an unlimited limit has none", l.unit)
		}
		return nil
	}
	if l.unit == "" {
		return f.ErrorAt(at, "unit is missing: want %s, or unlimited: true", unitNames)
	}
	var err error
	l.per, l.wire, err = l.span()
	switch {
	case errors.Is(err, errUnit):
		return f.ErrorAt(at+".unit", "unit %w", err)
	case err != nil:
		return f.ErrorAt(at+".unit_multiplier", "unit_multiplier %w", err)
	case l.perUnit < 0:
		return f.ErrorAt(at, "requests_per_unit is missing: want a whole number; 0 denies all")
	}
	return nil
}

const unitNames = "second, minute, hour, day, week, month or year"

var errUnit = errors.New("want " + unitNames)

// spans: unit → its length. A month is 30 days and a year 365, as in
// envoyproxy/ratelimit.
var spans = map[rlsv3.RateLimitResponse_RateLimit_Unit]time.Duration{
	rlsv3.RateLimitResponse_RateLimit_SECOND: time.Second,
	rlsv3.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	rlsv3.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	rlsv3.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	rlsv3.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	rlsv3.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	rlsv3.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

// span returns the window of a limit, and its unit as the service has it.
func (l *rateLimit) span() (time.Duration, rlsv3.RateLimitResponse_RateLimit_Unit, error) {
	unit := rlsv3.RateLimitResponse_RateLimit_Unit(rlsv3.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(
		l.unit)])
	if spans[unit] == 0 {
		return 0, 0, fmt.Errorf("%q: %w", l.unit, errUnit)
	}
	per, err := spanOf(unit, l.multiplier)
	return per, unit, err
}

// spanOf returns how long that many units are, if a window may be that long.
func spanOf(unit rlsv3.RateLimitResponse_RateLimit_Unit, multiplier int64) (time.Duration, error) {
	one := spans[unit]
	if most := int64(windows.MaxWindow / one); multiplier < 1 || multiplier > most {
		return 0, fmt.Errorf("%d: want 1 to %d for the unit %s, as windows end at %d days",
			multiplier, most, strings.ToLower(unit.String()), windows.MaxWindow/(24*time.Hour))
	}
	return time.Duration(multiplier) * one, nil
}

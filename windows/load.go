package windows

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/reload"
)

// Load reads the rules from a YAML file; see Parse.
func Load(path string, options ...ParseOption) (*Rules, error) {
	files, err := reload.ReadGiven("rules", path)
	if err != nil {
		return nil, err
	}
	return Parse(path, files[0].Data, options...)
}

// ParseOption is an option of Parse and Load.
type ParseOption int

// Parse reads rules as YAML; testdata/working_full.yml shows every field. It returns
// an error for the first fault, in syntax or in a value. The error begins with
// NAME:LINE:COLUMN, says what was found and what is wanted, and shows the place.
// Parse also reads the file that `hash_key` names, if a window has `hash: true`.
func Parse(name string, data []byte, options ...ParseOption) (*Rules, error) {
	var list []*Rule
	var hashKey string
	d, err := document.Read(name, data, "rules, a list of at least one", func(d *document.Document) document.Setter {
		return d.Mapping(document.Field{Name: "rules", Need: document.Needed,
			Set: d.List(func(n *document.Node, at string) error {
				rule := &Rule{Hold: DefaultHold}
				list = append(list, rule)
				return readRule(d, rule)(n, at)
			})},
			document.Field{Name: "hash_key", Set: document.Leaf(d, &hashKey, document.Text)})
	})
	if err == nil {
		err = giveHashKey(d, name, hashKey, list, options)
	}
	if err != nil {
		return nil, err
	}
	rules, i, f := newRules(list)
	if f != nil {
		return nil, faultIn(d, i, f)
	}
	never := unreachable(rules.list)
	for _, i := range slices.Sorted(maps.Keys(never)) {
		rule, first := rules.list[i], rules.list[never[i]]
		why := fmt.Sprintf("is never reached, as %q (match %q) above it takes all of its keys", first.Name, first.Match)
		if rule.Shadow {
			why = fmt.Sprintf("is never evaluated, as a key has at most %d shadow rules, and %q above it is the last "+
				"of its keys", MaxShadows, first.Name)
		}
		rules.warnings = append(rules.warnings, d.ErrorAt(fmt.Sprintf("rules[%d].match", i),
			"match %q: the rule %q %s", rule.Match, rule.Name, why))
	}
	return rules, nil
}

// readRule reads the fields of a rule. Options document their fields, and fields_test.go documents the other fields.
func readRule(d *document.Document, r *Rule) document.Setter {
	type field = document.Field
	return d.Mapping(append([]field{
		{Name: "name", Need: document.Needed, Set: document.Leaf(d, &r.Name, document.Text)},
		{Name: "match", Set: given(d, &r.Match, document.Text,
			`match "": want a pattern over keys, as "user:*", or "*" for all; for a tier leave match out`),
			Null: true},
		{Name: "algorithm", Set: document.Leaf(d, &r.Algorithm, document.Text)},
		{Name: "windows", Need: document.Needed, Set: d.List(func(n *document.Node, at string) error {
			r.Windows = append(r.Windows, Window{})
			return readWindow(d, &r.Windows[len(r.Windows)-1], n, at)
		})},
	}, optionFields(d, r)...)...)
}

// given is document.Leaf for a field whose zero value means that it is left out. If the zero value itself is given, it
// returns the error `refusal`.
func given[T comparable](d *document.Document, to *T, read func(*document.Node) (T, error), refusal string,
) document.Setter {
	return func(n *document.Node, at string) error {
		var zero T
		if !document.IsNull(n) {
			if err := document.Leaf(d, to, read)(n, at); err != nil || *to != zero {
				return err
			}
		}
		return d.Errorf(n, "%s", refusal)
	}
}

func readWindow(d *document.Document, w *Window, n *document.Node, at string) error {
	type field = document.Field
	var per, inFlight, zone, starts *document.Node
	keep := func(to **document.Node) document.Setter {
		return func(n *document.Node, _ string) error {
			*to = n
			return nil
		}
	}
	err := d.Mapping(append([]field{
		{Name: "limit", Need: document.Needed, Set: document.Leaf(d, &w.Limit, whole)},
		{Name: "per", Set: keep(&per)},
		{Name: "zone", Set: keep(&zone)},
		{Name: "starts", Set: keep(&starts)},
		{Name: "in_flight", Set: keep(&inFlight)},
		{Name: "algorithm", Set: document.Leaf(d, &w.Algorithm, document.Text)},
	}, distinctFields(d, w)...)...)(n, at)
	switch {
	case err != nil:
		return err
	case per == nil && inFlight == nil:
		return d.Errorf(n, "per is missing: want per, or in_flight, in a window")
	case per != nil && inFlight != nil:
		return d.Errorf(n, "per and in_flight: want one of them in a window")
	case inFlight != nil && zone != nil:
		return d.Errorf(zone, "zone: not allowed beside in_flight")
	case inFlight != nil && starts != nil:
		return d.Errorf(starts, "starts: not allowed beside in_flight")
	case inFlight != nil:
		w.InFlight = true
		return document.Leaf(d, &w.Per, duration)(inFlight, at+".in_flight")
	}
	if !document.IsText(per) {
		return document.Leaf(d, &w.Per, duration)(per, at+".per")
	}
	nodes := map[string]*document.Node{"per": per, "zone": zone, "starts": starts}
	wrong, err := w.setPer(per.Value, textOf(zone), textOf(starts))
	if err == nil {
		return nil
	}
	fails := func(*document.Node) (struct{}, error) { return struct{}{}, err }
	return document.Leaf(d, new(struct{}), fails)(nodes[wrong], at+"."+wrong)
}

// textOf returns a value as it is written. For a list or a mapping it returns a line feed, which is never valid.
func textOf(n *document.Node) string {
	if n == nil {
		return ""
	}
	text, err := document.Text(n)
	if err != nil || text == "" {
		return "\n"
	}
	return text
}

// faultIn returns the error of a fault, with the fault's place in the file.
func faultIn(d *document.Document, rule int, f *fault) error {
	at := "rules"
	if rule >= 0 {
		at = fmt.Sprintf("rules[%d].%s", rule, f.at)
	}
	msg := f.msg
	if f.first != "" {
		if first := d.Line(f.first); first != 0 {
			msg += fmt.Sprintf("; first in line %d", first)
		}
	}
	return d.ErrorAt(at, "%s", msg)
}

var whole = document.Whole(1, MaxLimit)

var errDuration = errors.New("numbers with units (ns, us, ms, s, m, h, d), as 500ms, 90s, 1d12h")

func duration(n *document.Node) (time.Duration, error) {
	if !document.IsText(n) {
		return 0, errDuration
	}
	return ParseDuration(n.Value)
}

const day = 24 * time.Hour

// ParseDuration reads a span of time in the form of a rules file: that of time.ParseDuration, which may have
// days of 24 hours in front, such as 1d12h or -1d12h.
func ParseDuration(s string) (time.Duration, error) {
	unsigned, negative := strings.CutPrefix(s, "-")
	days, rest, ok := strings.Cut(unsigned, "d")
	if !ok {
		days, rest = "0", unsigned
	}
	// The sign was removed, so the rest must begin with a digit.
	if strings.Trim(days, "0123456789.") != "" || (rest != "" && strings.ContainsAny(rest[:1], "+-")) {
		return 0, errDuration
	}
	if rest == "" && ok {
		rest = "0s"
	}
	whole, err := time.ParseDuration(days + "h")
	more, err2 := time.ParseDuration(rest)
	if err != nil || err2 != nil || whole > (1<<63-1)/24 || whole*24 > 1<<63-1-more {
		return 0, errDuration
	}
	if negative {
		return -(whole*24 + more), nil
	}
	return whole*24 + more, nil
}

// FormatDuration returns a duration in the shortest form that ParseDuration reads: 31d, 1h30m, 10ms.
func FormatDuration(d time.Duration) string { return inDays(d) }

func inDays(d time.Duration) string {
	if d != 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

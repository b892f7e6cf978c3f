package windows

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/streamcounter/streamcounter/api"
)

// Override is what an operator has set for a key or a pattern. It never changes: another
// takes its place.
type Override struct {
	target    string // a key, or a line feed and a pattern
	what      unique.Handle[what]
	untilMs   int64 // 0: it does not end by itself
	atMs      int64
	reason    unique.Handle[string]
	by        unique.Handle[string]
	partition int32
	of        *Overrides
}

func (o *Override) clock() int64 { return o.of.clock(int(o.partition)) }

// what an override does. Many keys have the same, so it is kept once.
type what struct {
	block, exempt bool
	rule          string
	windows       string // "500/1m,20000/month Europe/Berlin 15"
}

// newOverride reads what Redis holds under a target; nil where that is corrupt or foreign.
func newOverride(of *Overrides, p int, target, text string) *Override {
	o := api.ParseOverride(text)
	if o == nil {
		return nil
	}
	list := make([]string, len(o.Windows))
	for i, w := range o.Windows {
		list[i] = strings.TrimRight(fmt.Sprintf("%d/%s %s %s", w.Limit, w.Per, w.Zone, w.Starts), " ")
	}
	w := what{block: o.Block, exempt: o.Exempt, rule: o.Rule, windows: strings.Join(list, ",")}
	if len(list) > 0 && w.parsed() == nil {
		return nil
	}
	return &Override{target: target, what: unique.Make(w), untilMs: o.UntilMs, atMs: o.AtMs,
		reason: unique.Make(o.Reason), by: unique.Make(o.By), partition: int32(p), of: of}
}

// parsed gives the windows; nil where they are no windows.
func (w what) parsed() []Window {
	var out []Window
	for one := range strings.SplitSeq(w.windows, ",") {
		as := wordsOf(one)
		window := Window{Limit: as.Limit}
		if _, err := window.setPer(as.Per, as.Zone, as.Starts); err != nil {
			return nil
		}
		out = append(out, window)
	}
	if len(out) == 0 || (&Rule{Windows: out}).validateWindows() != nil {
		return nil
	}
	return out
}

// wordsOf splits one of the windows of what.
func wordsOf(one string) api.OverrideWindow {
	limit, rest, _ := strings.Cut(one, "/")
	per, rest, _ := strings.Cut(rest, " ")
	zone, starts, _ := strings.Cut(rest, " ")
	return api.OverrideWindow{Limit: atoi(limit), Per: per, Zone: zone, Starts: starts}
}

// API words it for the wire.
func (o *Override) API() api.Override {
	w := o.what.Value()
	out := api.Override{Block: w.block, Exempt: w.exempt, Rule: w.rule, UntilMs: o.untilMs, Reason: o.reason.Value(),
		By: o.by.Value(), AtMs: o.atMs}
	if pattern, ok := strings.CutPrefix(o.target, "\n"); ok {
		out.Pattern = pattern
	} else {
		out.Key = o.target
	}
	if w.windows != "" {
		for one := range strings.SplitSeq(w.windows, ",") {
			out.Windows = append(out.Windows, wordsOf(one))
		}
	}
	return out
}

// Blocks reports whether every check is denied.
func (o *Override) Blocks() bool { return o != nil && o.what.Value().block }

// Left is how long it stands yet, by the clock of its partition; 0 where it does not end by itself.
func (o *Override) Left() time.Duration {
	if o.untilMs == 0 {
		return 0
	}
	return time.Duration(o.untilMs-o.clock()) * time.Millisecond
}

// OfPattern is true for that of a pattern.
func (o *Override) OfPattern() bool { return strings.HasPrefix(o.target, "\n") }

// Exempts reports whether every check is admitted.
func (o *Override) Exempts() bool { return o != nil && o.what.Value().exempt }

// Reason is why it was set, as far as anybody said.
func (o *Override) Reason() string { return o.reason.Value() }

// stands is false from the millisecond on at which it ends, by the clock of its partition.
func (o *Override) stands() bool { return o.untilMs == 0 || o.clock() < o.untilMs }

// targetOf names a key or a pattern as Redis has it.
func targetOf(key, pattern string) string {
	if pattern != "" {
		return "\n" + pattern
	}
	return key
}

// validateOverride reports the first thing wrong with what is to be set, by field, under the rules
// of this process. The error wraps api.ErrBadOverride.
func validateOverride(o *api.Override, rules *Rules) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", api.ErrBadOverride, fmt.Errorf(format, args...))
	}
	given := []string{}
	for name, has := range map[string]bool{"block": o.Block, "exempt": o.Exempt, "rule": o.Rule != "",
		"windows": o.Windows != nil} {
		if has {
			given = append(given, name)
		}
	}
	slices.Sort(given)
	if len(given) != 1 {
		return bad(`it has %s, expected one of "block": true, "exempt": true, "rule" and "windows"`,
			orNothing(strings.Join(given, " and ")))
	}
	if err := api.ValidateReason(o.Reason); err != nil {
		return err
	}
	if o.Rule != "" {
		switch rule := rules.Named(o.Rule); {
		case rule == nil:
			return bad("rule %s: there is no rule of this name", api.Shorten(o.Rule))
		case rule.Shadow:
			return bad("rule %q: it is a shadow rule, which never decides", o.Rule)
		}
	}
	if o.Windows == nil {
		return nil
	}
	list := make([]Window, len(o.Windows))
	for i, w := range o.Windows {
		list[i].Limit = w.Limit
		if field, err := list[i].setPer(w.Per, w.Zone, w.Starts); err != nil {
			value := map[string]string{"per": w.Per, "zone": w.Zone, "starts": w.Starts}[field]
			return bad("windows[%d].%s: %s, expected %w", i, field, api.Shorten(value), err)
		}
		o.Windows[i].Per = list[i].PerText()
	}
	if f := (&Rule{Windows: list}).validateWindows(); f != nil {
		return bad("%s: %s", f.at, f.msg)
	}
	if o.Key != "" {
		if plan := rules.Written(o.Key); plan == nil || plan.Live == nil {
			return bad("windows: no rule matches the key %s, so nothing says how it is counted; give it a rule",
				api.Shorten(o.Key))
		}
	}
	return nil
}

func orNothing(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// glob is the pattern of an override.
type glob struct {
	Glob
	override *Override
}

func newGlob(o *Override) *glob {
	literal, rest := cutLiteral(o.target[1:])
	return &glob{Glob{literal, rest}, o}
}

// MaxOverridePatterns bounds how many patterns have an override: a check of any key that has none of
// its own is compared with those.
const MaxOverridePatterns = 1000

// MaxOverrideFor is the longest time from now at which an override may end.
const MaxOverrideFor = 100 * 366 * 24 * time.Hour

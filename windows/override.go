package windows

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/streamcounter/streamcounter/api"
)

// Override is what an operator has set for a key, a pattern or a network. It never changes: another
// takes its place.
type Override struct {
	target    string // a key, or a line feed and a pattern or a network
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
	only          bool   // the windows replace all of the rule's
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
	w := what{block: o.Block, exempt: o.Exempt, rule: o.Rule, windows: strings.Join(list, ","),
		only: o.Only}
	if len(list) > 0 && w.parsed() == nil {
		return nil
	}
	return &Override{target: target, what: unique.Make(w), untilMs: o.UntilMs, atMs: o.AtMs,
		reason: unique.Make(o.Reason), by: unique.Make(o.By), partition: int32(p), of: of}
}

// parsed gives the windows; nil where they are no windows.
func (w what) parsed() []overrideWindow {
	var out []overrideWindow
	for one := range strings.SplitSeq(w.windows, ",") {
		window, _, _, err := readOverrideWindow(wordsOf(one))
		if err != nil {
			return nil
		}
		out = append(out, window)
	}
	if len(out) == 0 || (&Rule{Windows: plain(out)}).validateWindows() != nil {
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
	out := api.Override{Block: w.block, Exempt: w.exempt, Rule: w.rule, Only: w.only, UntilMs: o.untilMs,
		Reason: o.reason.Value(), By: o.by.Value(), AtMs: o.atMs}
	if several, ok := strings.CutPrefix(o.target, "\n"); ok {
		out.SetTarget("", several)
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

// OfPattern is true for that of a pattern or a network.
func (o *Override) OfPattern() bool { return strings.HasPrefix(o.target, "\n") }

// Reason is why it was set, as far as anybody said.
func (o *Override) Reason() string { return o.reason.Value() }

// stands is false from the millisecond on at which it ends, by the clock of its partition.
func (o *Override) stands() bool { return o.untilMs == 0 || o.clock() < o.untilMs }

// targetOf names a key, or a pattern or a network, as Redis has it.
func targetOf(key, pattern string) string {
	if pattern != "" {
		return "\n" + pattern
	}
	return key
}

// ValidateOverride reports the first thing wrong with what is to be set, by field, under the rules
// of this process. The error wraps api.ErrBadOverride.
func ValidateOverride(o *api.Override, rules *Rules) error {
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
		if o.Only {
			return bad(`only: true without "windows": it says that they replace all windows of the rule`)
		}
		return nil
	}
	list := make([]Window, len(o.Windows))
	for i, w := range o.Windows {
		one, field, value, err := readOverrideWindow(w)
		if err != nil {
			return bad("windows[%d].%s: %s, expected %w", i, field, api.Shorten(value), err)
		}
		list[i], o.Windows[i].Per = one.Window, one.PerText()
	}
	if f := (&Rule{Windows: list}).validateWindows(); f != nil {
		return bad("%s: %s", f.at, f.msg)
	}
	if o.Key != "" {
		plan := rules.Written(o.Key)
		if plan == nil || plan.Live == nil {
			return bad("windows: no rule matches the key %s, so nothing says how it is counted; give it a rule (%s)",
				api.Shorten(o.Key), rules.matches())
		}
		if f := plan.Live.refuses(*o); f != nil {
			return bad("windows: beside those of rule %q: %s: %s; \"only\": true replaces all of them", plan.Live.Name,
				f.at, f.msg)
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

// networkOf is the network of a target; false where it is a key or a pattern.
func networkOf(target string) (api.Network, bool) {
	several, ok := strings.CutPrefix(target, "\n")
	if !ok {
		return api.Network{}, false
	}
	n, ok, err := api.ParseNetwork(several)
	return n, ok && err == nil
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

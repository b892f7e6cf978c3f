package windows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// withWindows returns the rule with the windows of an override. A window of the override replaces the rule's
// window of the same length, and keeps that window's algorithm, so that the count continues. Other windows are
// added. The rule keeps its other windows; if `only` is set, only those that count values. replaced are the
// rule's windows that are no longer in effect. A window without a zone and a start has the periods of the window that
// it replaces.
func (r *Rule) withWindows(list []api.OverrideWindow, only bool) (out *Rule, replaced []Window, err error) {
	c := *r
	c.Windows = slices.Clone(r.Windows)
	if only {
		c.Windows = slices.DeleteFunc(c.Windows, func(w Window) bool { return w.Distinct == "" })
	}
	for _, w := range list {
		window, _, err := readOverrideWindow(w)
		if err != nil {
			return nil, nil, err
		}
		window.Algorithm = r.algorithmFor(window)
		if i := slices.IndexFunc(r.Windows, window.Same); i >= 0 && w.Zone == "" && w.Starts == "" {
			window.setPeriods(r.Windows[i])
		}
		if i := slices.IndexFunc(c.Windows, window.Same); i >= 0 {
			c.Windows[i] = window
		} else {
			c.Windows = append(c.Windows, window)
		}
	}
	for _, w := range r.Windows {
		if !slices.Contains(c.Windows, w) {
			replaced = append(replaced, w)
		}
	}
	return &c, replaced, nil
}

// readOverrideWindow reads a window of an override. With an error, field is the wrong field.
func readOverrideWindow(w api.OverrideWindow) (out Window, field string, err error) {
	out.Limit = w.Limit
	field, err = out.setPer(w.Per, w.Zone, w.Starts)
	return out, field, err
}

// String returns a window in words: 100 per 1m.
func (w Window) String() string {
	if w.InFlight {
		return fmt.Sprintf("%d in flight", w.Limit)
	}
	if w.Distinct != "" {
		return fmt.Sprintf("%d values of %q per %s", w.Limit, w.Distinct, w.PerText())
	}
	return fmt.Sprintf("%d per %s", w.Limit, w.PerText()) + w.zoneText()
}

// Effect returns the consequences of an override: the windows that it replaces and keeps, and warnings about effects
// that the operator may not intend. A target with wildcards, and a network, can have keys of several rules.
func (r *Rules) Effect(o api.Override) (e api.OverrideEffect) {
	if o.Key == "" {
		for _, rule := range r.list {
			if f := rule.refuses(o); f != nil && rule.Match != "" && !rule.Shadow {
				e.Warnings = append(e.Warnings, fmt.Sprintf("keys of rule %s stay as they are: %s", rule.Name, f.msg))
			}
		}
		return e
	}
	plan := r.MatchAsWritten(o.Key)
	if plan == nil {
		e.Warnings = append(e.Warnings, fmt.Sprintf("no rule matches the key %s; %s", api.Shorten(o.Key), r.matches()))
		return e
	}
	if plan.Live == nil || len(o.Windows) == 0 {
		return e
	}
	under, replaced, err := plan.Live.withWindows(o.Windows, o.Only)
	if err != nil { // ValidateOverride returns this error
		return e
	}
	e.MatchedRule = plan.Live.Name
	for _, w := range replaced {
		e.Replaces = append(e.Replaces, w.String())
	}
	for _, w := range under.Windows {
		if slices.Contains(plan.Live.Windows, w) {
			e.Keeps = append(e.Keeps, w.String())
		}
	}
	return e
}

// refuses returns why the rule cannot have the windows of an override in addition to its windows; nil if it can.
func (r *Rule) refuses(o api.Override) *fault {
	under, _, err := r.withWindows(o.Windows, o.Only)
	if err != nil || len(o.Windows) == 0 {
		return nil
	}
	return under.validateWindows()
}

// ValidateOverride returns an error for the first fault of an override that is to be set, with the
// field's name, under the rules of this process. The error wraps api.ErrBadOverride.
func (r *Rules) ValidateOverride(o *api.Override) error {
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
			cmp.Or(strings.Join(given, " and "), "none"))
	}
	if err := api.ValidateReason(o.Reason); err != nil {
		return err
	}
	if o.Rule != "" {
		switch rule := r.Named(o.Rule); {
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
		one, field, err := readOverrideWindow(w)
		if err != nil {
			value := map[string]string{"per": w.Per, "zone": w.Zone, "starts": w.Starts}[field]
			return bad("windows[%d].%s: %s, expected %w", i, field, api.Shorten(value), err)
		}
		list[i], o.Windows[i].Per = one, one.PerText()
	}
	if f := (&Rule{Windows: list}).validateWindows(); f != nil {
		return bad("%s", strings.TrimPrefix(f.at+": "+f.msg, "windows: ")) // windows is an empty list
	}
	if o.Key != "" {
		plan := r.MatchAsWritten(o.Key)
		if plan == nil || plan.Live == nil {
			return bad("windows: no rule matches the key %s, so nothing says how it is counted; give it a rule (%s)",
				api.Shorten(o.Key), r.matches())
		}
		if f := plan.Live.refuses(*o); f != nil {
			remedy, all := "an override cannot replace a window of values", *o
			if all.Only = true; plan.Live.refuses(all) == nil {
				remedy = `"only": true (keys limit --all) replaces them`
			}
			return bad("windows: beside those of rule %q: %s; %s", plan.Live.Name, f.msg, remedy)
		}
	}
	return nil
}

// ReadableWindows reports whether the windows of an override are valid as the only windows of a rule.
func ReadableWindows(windows []api.OverrideWindow) bool {
	alone := &Rule{}
	for _, w := range windows {
		window, _, err := readOverrideWindow(w)
		if err != nil {
			return false
		}
		alone.Windows = append(alone.Windows, window)
	}
	return alone.validateWindows() == nil
}

// namedRules bounds how many rules a warning names.
const namedRules = 10

// matches returns the names and patterns of the rules, in words.
func (r *Rules) matches() string {
	text, n := "the rules match", 0
	for _, rule := range r.list {
		if rule.Match == "" {
			continue
		}
		if n++; n > namedRules {
			return text + " and more"
		}
		if n > 1 {
			text += ","
		}
		text += fmt.Sprintf(" %q (%s)", rule.Match, rule.Name)
	}
	if n == 0 {
		return "no rule has a match"
	}
	return text
}

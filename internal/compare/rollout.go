package compare

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/windows"
)

// Rollout says what the rules of a file would have done with a trace at its own times. Each rule counts alone, as if it
// were enforced, and exactly, whatever its algorithm is.
type Rollout struct {
	Trace     TraceInfo      `json:"trace"`
	Unmatched int64          `json:"requests_without_rule"`
	Rules     []*RuleRollout `json:"rules"`
}

// RuleRollout is what one rule would have done.
type RuleRollout struct {
	Rule     string `json:"rule"`
	Shadow   bool   `json:"shadow"`
	Requests int64  `json:"requests"` // of keys that it matches
	Keys     int    `json:"keys"`
	Denied   int64  `json:"denied_requests"`
	// Throttled are the keys that it would have denied or throttled, the keys with the most denied requests first.
	Throttled  []KeyRollout `json:"throttled"`
	NotCounted []string     `json:"not_counted"` // parts of the rule that are not counted as a server counts them

	plan     *windows.Plan // of the windows that count costs; nil: there are none
	onDeny   windows.OnDeny
	distinct []*distinct
	without  map[string]int64 // field → requests that have no value of it, and are not counted
	keys     map[string]*KeyRollout
}

// KeyRollout is what one rule would have done with one key.
type KeyRollout struct {
	Key      string `json:"key"`
	Requests int64  `json:"requests"`
	Denied   int64  `json:"denied_requests"`
	Times    []Span `json:"times"` // when it would have been throttled
}

// Span is one period in which a key is throttled.
type Span struct {
	FromMs int64 `json:"from_ms"`
	ToMs   int64 `json:"to_ms"`
}

// throttledFor returns the length of its longest period, and of all together.
func (k *KeyRollout) throttledFor() (longest, all time.Duration) {
	for _, s := range k.Times {
		one := millis(s.ToMs - s.FromMs)
		longest, all = max(longest, one), all+one
	}
	return longest, all
}

// RollOut runs a trace through rules.
func RollOut(ctx context.Context, rules *windows.Rules, t Trace) (*Rollout, error) {
	out := &Rollout{Trace: t.info()}
	byName := map[string]*RuleRollout{}
	for _, r := range rules.List() {
		if r.Match != "" {
			byName[r.Name] = newRuleRollout(r, &t)
			out.Rules = append(out.Rules, byName[r.Name])
		}
	}
	now := int64(0)
	local := counters.NewLocal(0, func() int64 { return now })
	for _, r := range t.Requests {
		now = r.Ms
		plan := rules.Match(r.Key)
		if plan == nil {
			out.Unmatched++
			continue
		}
		for _, rule := range plan.Rules() {
			if err := byName[rule.Name].replay(ctx, local, r); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range out.Rules {
		r.finish()
	}
	return out, nil
}

// newRuleRollout returns an empty RuleRollout for a rule and a trace.
func newRuleRollout(r *windows.Rule, t *Trace) *RuleRollout {
	out := &RuleRollout{Rule: r.Name, Shadow: r.Shadow, NotCounted: []string{}, Throttled: []KeyRollout{},
		onDeny: r.OnDeny, without: map[string]int64{}, keys: map[string]*KeyRollout{}}
	alone := &windows.Rule{Name: r.Name, OnDeny: r.OnDeny}
	for _, w := range r.Windows {
		switch {
		case w.InFlight:
			out.NotCounted = append(out.NotCounted, "windows in flight: a log does not say when a request ended")
		case w.Distinct != "" && !t.has(w.Distinct):
			out.NotCounted = append(out.NotCounted, fmt.Sprintf("different values of %q: no request has one",
				w.Distinct))
		case w.Distinct != "":
			out.distinct = append(out.distinct, newDistinct(w))
		default:
			w.Algorithm = ""
			alone.Windows = append(alone.Windows, w)
		}
	}
	out.NotCounted = append(out.NotCounted, r.NotReplayed()...)
	if len(alone.Windows) > 0 {
		out.plan = windows.PlanOf(alone)
	}
	return out
}

func (o *RuleRollout) replay(ctx context.Context, local *counters.Local, r Request) error {
	o.Requests++
	key := o.keys[r.Key]
	if key == nil {
		key = &KeyRollout{Key: r.Key}
		o.keys[r.Key] = key
	}
	key.Requests++
	allowed, counted := o.admitsValues(r)
	if !counted {
		return nil
	}
	until := int64(0) // when a full window has room again
	if o.plan != nil {
		v, err := local.Check(ctx, []counters.Request{{Plan: o.plan, Key: r.Key, Cost: r.Cost, Mode: o.mode(allowed)}})
		if err != nil {
			return err
		}
		allowed = allowed && v.Allowed
		for _, w := range v.Items[0].Windows {
			if w.Used >= w.Limit {
				until = max(until, r.Ms+w.NextFreeMs, r.Ms+v.Items[0].RetryAfter.Milliseconds())
			}
		}
	}
	if !allowed {
		o.Denied++
		key.Denied++
	}
	key.throttled(r.Ms, max(until, o.addValues(r, allowed)))
	return nil
}

// mode is how a request counts in the other windows of the rule, depending on whether its values are admitted.
func (o *RuleRollout) mode(admitted bool) api.Mode {
	switch {
	case admitted:
		return api.ModeTake
	case o.onDeny == windows.OnDenyCharge:
		return api.ModeCharge
	}
	return api.ModeLook
}

// throttled records that the key is throttled from ms to until; 0: it is not throttled.
func (k *KeyRollout) throttled(ms, until int64) {
	switch last := len(k.Times) - 1; {
	case until == 0:
	case last >= 0 && ms <= k.Times[last].ToMs:
		k.Times[last].ToMs = max(k.Times[last].ToMs, until)
	default:
		k.Times = append(k.Times, Span{ms, until})
	}
}

func (o *RuleRollout) finish() {
	o.Keys = len(o.keys)
	for _, field := range slices.Sorted(maps.Keys(o.without)) {
		o.NotCounted = append(o.NotCounted, fmt.Sprintf("%s without a value of %q",
			english.Plural(o.without[field], "request"), field))
	}
	for _, k := range o.keys {
		if k.Denied > 0 || len(k.Times) > 0 {
			o.Throttled = append(o.Throttled, *k)
		}
	}
	slices.SortFunc(o.Throttled, func(a, b KeyRollout) int {
		_, ofA := a.throttledFor()
		_, ofB := b.throttledFor()
		return cmp.Or(cmp.Compare(b.Denied, a.Denied), cmp.Compare(ofB, ofA), strings.Compare(a.Key, b.Key))
	})
}

// rolloutKeys is how many keys of a rule are written for people.
const rolloutKeys = 20

// WriteText writes the rollout for people.
func (o *Rollout) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%s by %s, from %s to %s\n", o.Trace.Name, english.Plural(o.Trace.Requests, "request"),
		english.Plural(o.Trace.Keys, "key"), when(o.Trace.FirstMs), when(o.Trace.LastMs))
	if o.Unmatched > 0 {
		fmt.Fprintf(&b, "No rule matches the keys of %s.\n", english.Plural(o.Unmatched, "request"))
	}
	for _, r := range o.Rules {
		r.write(&b)
	}
	fmt.Fprintln(&b, "\nEach rule counts alone and exactly, as if it were enforced.")
	_, err := b.WriteTo(w)
	return err
}

func (o *RuleRollout) write(w *bytes.Buffer) {
	name := o.Rule
	if o.Shadow {
		name += " (shadow)"
	}
	if o.Requests == 0 {
		fmt.Fprintf(w, "\nRule %s matches no request.\n", name)
		return
	}
	fmt.Fprintf(w, "\nRule %s would have denied %d of %s, and throttled %d of %s.\n", name, o.Denied,
		english.Plural(o.Requests, "request"), len(o.Throttled), english.Plural(o.Keys, "key"))
	for _, n := range o.NotCounted {
		fmt.Fprintf(w, "Not counted: %s.\n", n)
	}
	if len(o.Throttled) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tREQUESTS\tDENIED\tTHROTTLED\tFIRST\tLONGEST\tIN ALL")
	const tenth = 100 * time.Millisecond
	for _, k := range o.Throttled[:min(rolloutKeys, len(o.Throttled))] {
		longest, all := k.throttledFor()
		first := "-"
		if len(k.Times) > 0 {
			first = when(k.Times[0].FromMs)
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\n", k.Key, k.Requests, k.Denied,
			english.Plural(len(k.Times), "time"), first, longest.Round(tenth), all.Round(tenth))
	}
	_ = t.Flush() // a buffer takes all
	if more := len(o.Throttled) - rolloutKeys; more > 0 {
		fmt.Fprintf(w, "and %s; --json has all, with each time.\n", english.Plural(more, "more key"))
	}
}

func when(ms int64) string { return time.UnixMilli(ms).Local().Format("2006-01-02 15:04:05 MST") }

// distinct is a window of different values, counted directly from its definition: a plain map from each value to the
// time when it was last seen.
type distinct struct {
	window windows.Window
	plan   *windows.Plan               // of this window alone, which says which value is counted
	seen   map[string]map[string]int64 // key → value → ms
}

func newDistinct(w windows.Window) *distinct {
	plan := windows.PlanOf(&windows.Rule{Name: "distinct", Windows: []windows.Window{w}})
	return &distinct{w, plan, map[string]map[string]int64{}}
}

// value returns the value of a request that is counted, "" if the request has none.
func (d *distinct) value(r Request) string {
	list, err := d.plan.Values(func(name string) string { return r.Values[name] })
	if err != nil {
		return ""
	}
	return list[0]
}

// look returns how many values are in the window of a key, and when the first of them leaves. It removes those that
// have left.
func (d *distinct) look(key string, ms int64) (used, next int64) {
	for value, seen := range d.seen[key] {
		leaves := seen + d.window.Per.Milliseconds()
		if leaves <= ms {
			delete(d.seen[key], value)
			continue
		}
		if used++; used == 1 || leaves < next {
			next = leaves
		}
	}
	return used, next
}

// admitsValues reports whether the windows of values have room for a request, or have its value already, and whether
// the request has all values that they count.
func (o *RuleRollout) admitsValues(r Request) (admitted, counted bool) {
	admitted = true
	for _, d := range o.distinct {
		value := d.value(r)
		if value == "" {
			o.without[d.window.Distinct]++
			return false, false
		}
		used, _ := d.look(r.Key, r.Ms)
		_, known := d.seen[r.Key][value]
		admitted = admitted && (known || used < d.window.Limit)
	}
	return admitted, true
}

// addValues adds the values of a request that was admitted. It returns when a full window has room again; 0: no
// window is full.
func (o *RuleRollout) addValues(r Request, admitted bool) (until int64) {
	for _, d := range o.distinct {
		if admitted {
			if d.seen[r.Key] == nil {
				d.seen[r.Key] = map[string]int64{}
			}
			d.seen[r.Key][d.value(r)] = r.Ms
		}
		if used, next := d.look(r.Key, r.Ms); used >= d.window.Limit {
			until = max(until, next)
		}
	}
	return until
}

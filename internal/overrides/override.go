package overrides

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/glob"
)

// Override is what an operator has set for a key, a pattern or a network. It never changes. A new
// Override replaces it.
type Override struct {
	target    string // a key, or a line feed and a pattern or a network
	effect    unique.Handle[Effect]
	untilMs   int64 // 0: it has no end
	atMs      int64
	reason    unique.Handle[string]
	by        unique.Handle[string]
	partition int32
	of        *All
}

func (o *Override) clock() int64 { return o.of.Clock(int(o.partition)) }

// Effect is what an override does. Many keys have the same Effect, so it is stored once.
type Effect struct {
	Block, Exempt bool
	Rule          string
	Only          bool   // the windows replace all windows of the rule
	windows       string // "500/1m,20000/month Europe/Berlin 15"
}

// HasWindows reports whether the override has windows of its own.
func (e Effect) HasWindows() bool { return e.windows != "" }

// Windows returns the windows of the override.
func (e Effect) Windows() (list []api.OverrideWindow) {
	if e.windows == "" {
		return nil
	}
	for one := range strings.SplitSeq(e.windows, ",") {
		limit, rest, _ := strings.Cut(one, "/")
		per, rest, _ := strings.Cut(rest, " ")
		zone, starts, _ := strings.Cut(rest, " ")
		list = append(list, api.OverrideWindow{Limit: number(limit), Per: per, Zone: zone, Starts: starts})
	}
	return list
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// Effect returns its effect. Two overrides with the same effect have the same handle.
func (o *Override) Effect() unique.Handle[Effect] { return o.effect }

// parse reads the override of a target from its text in Redis; nil if the text is corrupt or foreign.
func parse(of *All, p int, target, text string) *Override {
	o := api.ParseOverride(text)
	if o == nil {
		return nil
	}
	list := make([]string, len(o.Windows))
	for i, w := range o.Windows {
		list[i] = strings.TrimRight(fmt.Sprintf("%d/%s %s %s", w.Limit, w.Per, w.Zone, w.Starts), " ")
	}
	e := Effect{Block: o.Block, Exempt: o.Exempt, Rule: o.Rule, Only: o.Only, windows: strings.Join(list, ",")}
	if len(list) > 0 && !of.store.Readable(e.Windows()) {
		return nil
	}
	return &Override{target: target, effect: unique.Make(e), untilMs: o.UntilMs, atMs: o.AtMs,
		reason: unique.Make(o.Reason), by: unique.Make(o.By), partition: int32(p), of: of}
}

// API returns it in the form of the API.
func (o *Override) API() api.Override {
	e := o.effect.Value()
	out := api.Override{Block: e.Block, Exempt: e.Exempt, Rule: e.Rule, Only: e.Only, Windows: e.Windows(),
		UntilMs: o.untilMs, Reason: o.reason.Value(), By: o.by.Value(), AtMs: o.atMs}
	if several, ok := strings.CutPrefix(o.target, "\n"); ok {
		out.SetTarget("", several)
	} else {
		out.Key = o.target
	}
	return out
}

// Blocks reports whether every check is denied.
func (o *Override) Blocks() bool { return o != nil && o.effect.Value().Block }

// UntilMs returns when it ends, in ms since 1970 by the clock of its partition; 0 if it has no end.
func (o *Override) UntilMs() int64 { return o.untilMs }

// LeftMs returns how long it lasts from now on, by the clock of its partition, if it has an end.
func (o *Override) LeftMs() int64 { return o.untilMs - o.clock() }

// OfPattern reports whether it is the override of a pattern or a network.
func (o *Override) OfPattern() bool { return strings.HasPrefix(o.target, "\n") }

// Reason returns why it was set, if the operator gave a reason.
func (o *Override) Reason() string { return o.reason.Value() }

// InEffect reports whether it is in effect, by the clock of its partition. It is false from the millisecond at which it
// ends.
func (o *Override) InEffect() bool { return o.untilMs == 0 || o.clock() < o.untilMs }

// Target returns the target of a key, or of a pattern or a network, in the form of Redis.
func Target(key, pattern string) string {
	if pattern != "" {
		return "\n" + pattern
	}
	return key
}

// networkOf returns the network of a target; false if it is a key or a pattern.
func networkOf(target string) (api.Network, bool) {
	several, ok := strings.CutPrefix(target, "\n")
	if !ok {
		return api.Network{}, false
	}
	n, ok, err := api.ParseNetwork(several)
	return n, ok && err == nil
}

// pattern is an override with its pattern.
type pattern struct {
	glob.Glob
	override *Override
}

func newPattern(o *Override) *pattern { return &pattern{glob.Split(o.target[1:]), o} }

// MaxPatterns bounds how many patterns have an override, because each check of a key that has
// no override is compared with all of them.
const MaxPatterns = 1000

// MaxDuration is the longest time from now at which an override may end.
const MaxDuration = 100 * 366 * 24 * time.Hour

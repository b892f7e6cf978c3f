package windows

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// Rule says which keys are counted over which windows, and what follows.
// Load, Parse and NewRules fill in the defaults and validate; a Rule is not
// changed after.
type Rule struct {
	// Name is [a-z0-9-]{1,64}, unique among the rules.
	Name string
	// Match is a glob over the whole key: * any run of characters, ? any one
	// character, \ takes the next literally. The first rule that matches and is no
	// shadow decides. Empty: the rule is a tier, which only an override chooses.
	Match string
	// Algorithm counts the windows that name none themselves; default "sliding-log".
	Algorithm string
	// Buckets is how many a window is cut into, for "sliding-buckets" alone; default 60.
	Buckets int64
	// Windows are checked together: a check is admitted if all admit it.
	Windows []Window
	// Alerts are percentages of each window's limit, rising, each from 1 to 99.
	// 100 is always one more level: throttled.
	Alerts []int
	// Hold is how long a throttle or alert stands at least; default 1s, 0s is allowed.
	Hold time.Duration
	// Penalty: a throttle lasts at least as long as the first of these, the next one that begins within
	// Forget after its end as long as the second, and so on; later ones as the last. Nothing is admitted
	// meanwhile. A shadow rule has none.
	Penalty []time.Duration `json:",omitempty"`
	Forget  time.Duration   `json:",omitempty"` // default 24h where there is a Penalty
	// OnDeny says whether a denied cost counts; default skip.
	OnDeny OnDeny
	// OnError decides a check when Redis cannot answer; default allow.
	OnError OnError
	// OnExpire says what becomes of units that are reserved and that nobody settled in time;
	// default charge.
	OnExpire OnExpire
	// Lease is for how long a server reserves units of a key that it is asked for often, to
	// answer from memory; 0: it reserves none. Where windows of an override are shorter, so is it.
	Lease time.Duration `json:",omitempty"`
	// Shadow rules never decide. They are evaluated and published beside the rule
	// that does, on the same count, wherever they stand in the file.
	Shadow bool
	// Exclusive shadow rules are matched as if they decided: neither a rule below
	// them nor another shadow concerns their keys. They are the limits of Envoy in
	// shadow mode. No file has them.
	Exclusive bool `json:",omitempty"`
	// Unlevelled rules have no levels: checks count and deny, and nothing is
	// raised, published or swept. They are for limits that a caller brings along,
	// which differ from one request to the next for the same key. No file has them.
	Unlevelled bool `json:",omitempty"`
}

// Window admits Limit units in any span of Per.
type Window struct {
	Limit int64
	Per   time.Duration
	// InFlight: the window counts what is reserved alone, and admits Limit units at once. Per
	// is then how long a reservation stands at most if nobody renews it.
	InFlight bool `json:",omitempty"`
	// Algorithm counts this window; empty: the rule's does. A window of the calendar, and one that is
	// InFlight, have none.
	Algorithm string `json:",omitempty"`
	// Calendar: the window is a day, week, month or year, and Per the longest that one can last. The
	// units in it are counted exactly.
	Calendar Calendar `json:",omitzero"`
}

// OnDeny says what becomes of a cost that is denied.
type OnDeny string

// What becomes of a denied cost.
const (
	OnDenySkip   OnDeny = "skip"   // it does not count
	OnDenyCharge OnDeny = "charge" // it happened all the same, and counts
)

// OnExpire is what becomes of a reservation that nobody settled in time.
type OnExpire string

// Its units are charged, as the work was probably done, or they are free.
const (
	OnExpireCharge OnExpire = "charge"
	OnExpireFree   OnExpire = "free"
)

// OnError is what a check answers when Redis cannot.
type OnError string

// The answers when Redis is away.
const (
	OnErrorAllow OnError = "allow"
	OnErrorDeny  OnError = "deny"
	OnErrorLocal OnError = "local" // this process's own count
)

// Algorithms are the names that a rule's algorithm can have, the default first.
var Algorithms = lua.AlgorithmNames()

// Bounds and defaults of a rule.
const (
	DefaultAlgorithm = "sliding-log"
	SlidingBuckets   = "sliding-buckets"
	DefaultBuckets   = 60
	MaxBuckets       = 1000
	DefaultHold      = time.Second
	MaxHold          = 24 * time.Hour
	MinWindow        = 10 * time.Millisecond
	MaxWindow        = 366 * 24 * time.Hour
	MaxWindows       = 8
	MaxLimit         = 1_000_000_000_000 // 10^12
	// MaxReservation is how long a reservation stands at most.
	MaxReservation = 24 * time.Hour
	// A penalty has up to MaxPenalties steps, of MinPenalty to MaxPenalty.
	MaxPenalties  = 10
	MinPenalty    = time.Second
	MaxPenalty    = 31 * 24 * time.Hour
	DefaultForget = 24 * time.Hour
)

// InFlight gives the shortest in_flight window of the rule, which bounds how long its
// reservations stand; 0 where it has none.
func (r *Rule) InFlight() time.Duration {
	var d time.Duration
	for _, w := range r.Windows {
		if w.InFlight && (d == 0 || w.Per < d) {
			d = w.Per
		}
	}
	return d
}

// algorithmOf gives the algorithm that counts a window of the rule; "" for one that counts what is
// reserved alone. Exact ones say the same of the same events, so all windows that name one share that of the
// longest of them: then what a key has spent can pass to any other (carry.go).
func (r *Rule) algorithmOf(w Window) string {
	a := r.namedFor(w)
	if !lua.IsExact(a) {
		return a
	}
	longest := time.Duration(0)
	for _, other := range r.Windows {
		if name := r.namedFor(other); other.Per > longest && lua.IsExact(name) {
			a, longest = name, other.Per
		}
	}
	return a
}

// namedFor gives the algorithm that the rule names for a window.
func (r *Rule) namedFor(w Window) string {
	switch {
	case w.InFlight:
		return ""
	case w.Calendar.Unit != "":
		return lua.Calendar
	}
	return cmp.Or(w.Algorithm, r.Algorithm)
}

// exact gives the exact algorithm of the rule's windows; "" where none is.
func (r *Rule) exact() string {
	for _, a := range r.Algorithms() {
		if lua.IsExact(a) {
			return a
		}
	}
	return ""
}

// withExact gives the rule with another exact algorithm for the windows that have one.
func (r *Rule) withExact(to string) *Rule {
	if r == nil || to == "" || r.exact() == "" || r.exact() == to {
		return r
	}
	c := *r
	c.Windows = slices.Clone(r.Windows)
	if lua.IsExact(c.Algorithm) {
		c.Algorithm = to
	}
	for i := range c.Windows {
		if lua.IsExact(c.Windows[i].Algorithm) {
			c.Windows[i].Algorithm = to
		}
	}
	return &c
}

// Algorithms gives the algorithms that count the rule's windows, each once: one of Algorithms, or
// "calendar". A rule that counts what is reserved alone has its own.
func (r *Rule) Algorithms() []string {
	var list []string
	for _, w := range r.Windows {
		if a := r.algorithmOf(w); a != "" && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return []string{r.Algorithm}
	}
	return list
}

// punishes tells whether throttles of the rule have a penalty.
func (r *Rule) punishes() bool { return len(r.Penalty) > 0 && !r.Shadow && !r.Unlevelled }

// charges tells whether a window of the rule counts what was charged.
func (r *Rule) charges() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return !w.InFlight })
}

// Longest is the longest window of the rule that counts what was charged; of a rule that
// has in_flight windows alone, the longest of those.
func (r *Rule) Longest() time.Duration {
	var d time.Duration
	for _, w := range r.Windows {
		if !w.InFlight || !r.charges() {
			d = max(d, w.Per)
		}
	}
	return d
}

// Smallest is the smallest limit among the windows: no check may cost more.
func (r *Rule) Smallest() int64 {
	n := r.Windows[0].Limit
	for _, w := range r.Windows {
		n = min(n, w.Limit)
	}
	return n
}

// Resolution is how far apart events of one key may lie and still share an
// entry of its log: a thousandth of the shortest window, at least 1 ms.
func (r *Rule) Resolution() time.Duration {
	return max(r.shortest()/1000, time.Millisecond)
}

// withDefaults is a copy with the defaults filled in, all but Hold's: 0 is a
// choice there.
func (r *Rule) withDefaults() *Rule {
	c := *r
	c.Windows, c.Alerts = slices.Clone(r.Windows), slices.Clone(r.Alerts)
	c.Algorithm, c.OnError = cmp.Or(r.Algorithm, DefaultAlgorithm), cmp.Or(r.OnError, OnErrorAllow)
	c.OnDeny = cmp.Or(r.OnDeny, OnDenySkip)
	c.OnExpire = cmp.Or(r.OnExpire, OnExpireCharge)
	c.Penalty = slices.Clone(r.Penalty)
	if len(c.Penalty) > 0 {
		c.Forget = cmp.Or(r.Forget, DefaultForget)
	}
	if slices.Contains(c.Algorithms(), SlidingBuckets) {
		c.Buckets = cmp.Or(r.Buckets, DefaultBuckets)
	}
	return &c
}

// fault is one thing wrong with a rule. NewRules and Parse each say where it
// stands in their own way.
type fault struct {
	at    string // the field, as in windows[1].per
	first string // the earlier field that it collides with, if it does
	msg   string
}

func faultf(at, format string, args ...any) *fault {
	return &fault{at: at, msg: fmt.Sprintf(format, args...)}
}

var nameForm = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// validate gives the first thing wrong with the rule, nil if there is none.
func (r *Rule) validate() *fault {
	switch {
	case !nameForm.MatchString(r.Name):
		return faultf("name", "name %q: want 1 to 64 of a-z, 0-9 and -", r.Name)
	case r.Name == api.OverrideRule:
		return faultf("name", "name %q: it is that of the decisions of blocks; want another", r.Name)
	case r.Match == "" && r.Shadow:
		return faultf("shadow", "shadow: true without match: only an override chooses such a rule, and never a shadow")
	case strings.ContainsFunc(r.Match, func(c rune) bool { return c == utf8.RuneError || api.Unprintable(c) }):
		return faultf("match", "match %q: want UTF-8 without control characters; no key has others", r.Match)
	case (len(r.Match)-len(strings.TrimRight(r.Match, `\`)))%2 == 1:
		return faultf("match", `match %s: want a character after the last \; \\ is the backslash itself`, r.Match)
	case !slices.Contains(Algorithms, r.Algorithm):
		return faultf("algorithm", "algorithm %q: want %s", r.Algorithm, strings.Join(Algorithms, ", "))
	}
	if f := r.validateWindows(); f != nil {
		return f
	}
	if f := r.validateLease(); f != nil {
		return f
	}
	if f := r.validatePenalty(); f != nil {
		return f
	}
	switch has := slices.Contains(r.Algorithms(), SlidingBuckets); {
	case !has && r.Buckets != 0:
		return faultf("buckets", "buckets %d: only %s has buckets, not %s", r.Buckets, SlidingBuckets,
			strings.Join(r.Algorithms(), " and "))
	case has && (r.Buckets < 1 || r.Buckets > MaxBuckets):
		return faultf("buckets", "buckets %d: want a whole number from 1 to %d", r.Buckets, MaxBuckets)
	}
	for i, pct := range r.Alerts {
		at := fmt.Sprintf("alerts[%d]", i)
		if pct < 1 || pct > 99 {
			return faultf(at, "alert %d%%: want 1%% to 99%%; 100%% is always one more level", pct)
		}
		if j := slices.Index(r.Alerts[:i], pct); j >= 0 {
			return &fault{at, fmt.Sprintf("alerts[%d]", j), fmt.Sprintf("alert %d%%: want each percentage once", pct)}
		}
	}
	switch {
	case r.Hold < 0 || r.Hold > MaxHold || r.Hold%time.Millisecond != 0:
		return faultf("hold", "hold %s: want 0s to %s in whole milliseconds", inDays(r.Hold), inDays(MaxHold))
	case r.OnDeny != OnDenySkip && r.OnDeny != OnDenyCharge:
		return faultf("on_deny", "on_deny %q: want %s or %s", r.OnDeny, OnDenySkip, OnDenyCharge)
	case r.OnError != OnErrorAllow && r.OnError != OnErrorDeny && r.OnError != OnErrorLocal:
		return faultf("on_error", "on_error %q: want %s, %s or %s", r.OnError, OnErrorAllow, OnErrorDeny, OnErrorLocal)
	case r.OnExpire != OnExpireCharge && r.OnExpire != OnExpireFree:
		return faultf("on_expire", "on_expire %q: want %s or %s", r.OnExpire, OnExpireCharge, OnExpireFree)
	}
	return nil
}

func (r *Rule) validateWindows() *fault {
	if len(r.Windows) == 0 {
		return faultf("windows", "windows is an empty list: want 1 to %d, as [{limit: 100, per: 1m}]", MaxWindows)
	}
	if len(r.Windows) > MaxWindows {
		return faultf(fmt.Sprintf("windows[%d]", MaxWindows), "%d windows: want at most %d", len(r.Windows), MaxWindows)
	}
	for i, w := range r.Windows {
		limit, field, longest := fmt.Sprintf("windows[%d].limit", i), "per", MaxWindow
		if w.InFlight {
			field, longest = "in_flight", MaxReservation
		}
		per := fmt.Sprintf("windows[%d].%s", i, field)
		switch {
		case w.Limit < 1 || w.Limit > MaxLimit:
			return faultf(limit, "limit %d: want a whole number from 1 to %d", w.Limit, MaxLimit)
		case w.Calendar.Unit == "" && (w.Per < MinWindow || w.Per > longest || w.Per%time.Millisecond != 0):
			return faultf(per, "%s %s: want %s to %s in whole milliseconds", field, inDays(w.Per), inDays(MinWindow),
				inDays(longest))
		}
		if f := r.validateAlgorithm(i); f != nil {
			return f
		}
		if j := slices.IndexFunc(r.Windows[:i], w.overlaps); j >= 0 {
			first := strings.Replace(per, fmt.Sprint(i), fmt.Sprint(j), 1)
			if r.Windows[j].InFlight != w.InFlight {
				first = fmt.Sprintf("windows[%d]", j)
			}
			what := "want each span once in a rule"
			if other := r.Windows[j]; other.PerText() != w.PerText() {
				what += fmt.Sprintf(", and %s and %s can last equally long", other.PerText(), w.PerText())
			}
			return &fault{per, first, fmt.Sprintf("%s %s: %s", field, w.PerText(), what)}
		}
	}
	return nil
}

func (r *Rule) validatePenalty() *fault {
	switch {
	case len(r.Penalty) == 0 && r.Forget != 0:
		return faultf("forget", "forget %s: want none without a penalty", inDays(r.Forget))
	case len(r.Penalty) == 0:
		return nil
	case len(r.Penalty) > MaxPenalties:
		return faultf("penalty", "penalty has %d steps: want at most %d", len(r.Penalty), MaxPenalties)
	case r.Lease != 0:
		return &fault{"penalty", "lease",
			"penalty beside lease: what is answered ahead knows no penalty; want one of both"}
	case r.Forget < MinPenalty || r.Forget > MaxWindow || r.Forget%time.Millisecond != 0:
		return faultf("forget", "forget %s: want %s to %s in whole milliseconds", inDays(r.Forget), inDays(MinPenalty),
			inDays(MaxWindow))
	}
	for i, d := range r.Penalty {
		at := fmt.Sprintf("penalty[%d]", i)
		switch {
		case d < MinPenalty || d > MaxPenalty || d%time.Millisecond != 0:
			return faultf(at, "penalty %s: want %s to %s in whole milliseconds", inDays(d), inDays(MinPenalty),
				inDays(MaxPenalty))
		case i > 0 && d < r.Penalty[i-1]:
			return faultf(at, "penalty %s after %s: want no step shorter than the one before", inDays(d),
				inDays(r.Penalty[i-1]))
		}
	}
	return nil
}

func (r *Rule) validateAlgorithm(i int) *fault {
	w, at := r.Windows[i], fmt.Sprintf("windows[%d].algorithm", i)
	switch {
	case w.Algorithm == "":
		return nil
	case w.InFlight:
		return faultf(at, "algorithm %q: want none beside in_flight, as what is reserved alone counts there",
			w.Algorithm)
	case w.Calendar.Unit != "":
		return faultf(at, "algorithm %q: want none, as a %s is counted exactly in one integer", w.Algorithm,
			w.Calendar.Unit)
	case !slices.Contains(Algorithms, w.Algorithm):
		return faultf(at, "algorithm %q: want %s", w.Algorithm, strings.Join(Algorithms, ", "))
	}
	return nil
}

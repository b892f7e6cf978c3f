package windows

import (
	"cmp"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/lua"
)

// Rule says which keys are counted over which windows, and what happens at a
// limit. Load, Parse and NewRules fill in the defaults and validate. After that a
// Rule does not change.
type Rule struct {
	// Name is [a-z0-9-]{1,64}, unique among the rules.
	Name string
	// Match is a glob over the whole key: * is any run of characters, ? is any one
	// character, \ makes the next character literal. The first rule that matches and is no
	// shadow decides. Empty: the rule is a tier, which only an operator chooses.
	Match string
	// Algorithm counts the windows that do not name one; default "sliding-log".
	Algorithm string
	// Buckets is how many buckets a window has, only for "sliding-buckets"; default 60.
	Buckets int64
	// Windows are checked together: a check is admitted if all admit it.
	Windows []Window
	// Alerts are percentages of each window's limit, ascending, each from 1 to 99.
	// 100 is always one more level: throttled.
	Alerts []int
	// Hold is the shortest time that a throttle or alert lasts; default 1s, 0s is allowed.
	Hold time.Duration
	// Penalty has the shortest time of the first throttle, of the second, and so on; later throttles
	// have the last. A throttle gets the next step if it begins within Forget after the penalty before it
	// has ended. No check is admitted during a penalty. A shadow rule has none.
	Penalty []time.Duration `json:",omitempty"`
	Forget  time.Duration   `json:",omitempty"` // default 24h if there is a Penalty
	// OnDeny says whether a denied cost counts; default skip.
	OnDeny OnDeny
	// OnError decides a check if Redis cannot answer; default allow.
	OnError OnError
	// OnExpire says what happens to reserved units that were not settled in time;
	// default charge.
	OnExpire OnExpire
	// Lease is how long a server reserves units of a key that is checked often, to answer
	// from memory; 0: it reserves none. If an operator sets shorter windows, it is shorter too.
	Lease time.Duration `json:",omitempty"`
	// Shadow rules never decide. They are evaluated and published in addition to the
	// rule that decides, on the same count, wherever they are in the file.
	Shadow bool
	// Exclusive shadow rules are matched as if they decided: rules below them and other
	// shadow rules do not apply to their keys. They are Envoy's limits in shadow mode.
	// A rules file cannot have them.
	Exclusive bool `json:",omitempty"`
	// Unlevelled rules have no levels: checks count and deny, and nothing is raised,
	// published or swept. They are for limits that the caller sends with a request, which
	// differ between requests for the same key. A rules file cannot have them.
	Unlevelled bool `json:",omitempty"`
}

// Window admits Limit units in any span of Per.
type Window struct {
	Limit int64
	Per   time.Duration
	// InFlight: the window counts only reserved units, and admits Limit units at once. Per
	// is then how long a reservation lasts at most if it is not renewed.
	InFlight bool `json:",omitempty"`
	// Algorithm counts this window; empty: the rule's algorithm does. It is always empty for a
	// window with a Calendar or Distinct, which has a fixed algorithm, and with InFlight.
	Algorithm string `json:",omitempty"`
	// Calendar: the window is a day, week, month or year, and Per is the longest time that one can
	// last. The units in it are counted exactly.
	Calendar Calendar `json:",omitzero"`
	// Distinct names a field of events and checks. The window then admits Limit different values of the field,
	// whatever the cost is. Normalize says which spellings are the same value.
	Distinct  string    `json:",omitempty"`
	Normalize Normalize `json:",omitzero"`
	// Hash is the secret with which values are hashed before they are stored; zero: they are stored as they are.
	Hash HashKey `json:",omitzero"`
	// ValueFrom names the entry of an Envoy descriptor that has the value. The entry is then no part of the key.
	ValueFrom string `json:",omitempty"`
	// PublishValues is how many of the newest values a transition of the rule contains if it begins a level.
	PublishValues int `json:",omitempty"`
}

func (w Window) kind() api.WindowKind {
	return api.WindowKind{Periodic: api.Periodic{Calendar: w.Calendar.Unit}, InFlight: w.InFlight, Distinct: w.Distinct}
}

// Algorithms are the names that a rule's algorithm can have, the default first.
var Algorithms = lua.AlgorithmNames()

// Bounds and defaults of a rule.
const (
	DefaultAlgorithm = "sliding-log"
	SlidingBuckets   = "sliding-buckets"
	MinWindow        = 10 * time.Millisecond
	MaxWindow        = 366 * 24 * time.Hour
	MaxWindows       = 8
	MaxLimit         = 1_000_000_000_000 // 10^12
	// MaxReservation is how long a reservation lasts at most.
	MaxReservation = 24 * time.Hour
)

// InFlight returns the shortest in_flight window of the rule, which is the longest time that its
// reservations can last; 0 if it has none.
func (r *Rule) InFlight() time.Duration {
	var d time.Duration
	for _, w := range r.Windows {
		if w.InFlight && (d == 0 || w.Per < d) {
			d = w.Per
		}
	}
	return d
}

// Charges reports whether a window of the rule counts charged units.
func (r *Rule) Charges() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return !w.InFlight })
}

// distinct reports whether a window of the rule counts values.
func (r *Rule) distinct() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Distinct != "" })
}

// Longest returns the longest window of the rule that counts charged units. If the rule has
// only in_flight windows, it returns the longest of those.
func (r *Rule) Longest() time.Duration {
	var d time.Duration
	for _, w := range r.Windows {
		if !w.InFlight || !r.Charges() {
			d = max(d, w.Per)
		}
	}
	return d
}

// Smallest returns the smallest limit among the windows that count costs. No check may cost more.
func (r *Rule) Smallest() int64 {
	n := int64(MaxLimit)
	for _, w := range r.Windows {
		if w.Distinct == "" {
			n = min(n, w.Limit)
		}
	}
	return n
}

// Resolution returns how far apart in time events of one key may be and still share
// an entry of its log: a thousandth of the shortest window, at least 1 ms.
func (r *Rule) Resolution() time.Duration {
	return max(r.shortest()/1000, time.Millisecond)
}

// withDefaults returns a copy with all defaults filled in, except that of Hold,
// where 0 is a valid value.
func (r *Rule) withDefaults() *Rule {
	c := *r
	c.Windows, c.Alerts = slices.Clone(r.Windows), slices.Clone(r.Alerts)
	c.Algorithm = cmp.Or(r.Algorithm, DefaultAlgorithm)
	for _, o := range options {
		if o.defaults != nil {
			o.defaults(&c)
		}
	}
	return &c
}

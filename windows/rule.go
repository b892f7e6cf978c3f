package windows

import (
	"cmp"
	"slices"
	"time"

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
	// shadow decides. Empty: the rule is a tier, which only an operator chooses.
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
	// answer from memory; 0: it reserves none. Where an operator sets shorter windows, so is it.
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
	// Algorithm counts this window; empty: the rule's does. A window that an algorithm of
	// its kind counts, and one that is InFlight, have none.
	Algorithm string `json:",omitempty"`
	// Calendar: the window is a day, week, month or year, and Per the longest that one can last. The
	// units in it are counted exactly.
	Calendar Calendar `json:",omitzero"`
	// Distinct names a field of events and checks. The window then admits Limit different values of it, whatever
	// they cost. Normalize says which spellings are one value.
	Distinct  string    `json:",omitempty"`
	Normalize Normalize `json:",omitzero"`
	// Hash is the secret by which values are hashed before they are stored; zero: they are stored as they are.
	Hash HashKey `json:",omitzero"`
	// ValueFrom names the entry of an Envoy descriptor that has the value. The entry is no part of the key then.
	ValueFrom string `json:",omitempty"`
	// PublishValues is how many of the newest values go with each transition of the rule that begins a level.
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
	// MaxReservation is how long a reservation stands at most.
	MaxReservation = 24 * time.Hour
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

// Charges tells whether a window of the rule counts what was charged.
func (r *Rule) Charges() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return !w.InFlight })
}

// distinct tells whether a window of the rule counts values.
func (r *Rule) distinct() bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Distinct != "" })
}

// Longest is the longest window of the rule that counts what was charged; of a rule that
// has in_flight windows alone, the longest of those.
func (r *Rule) Longest() time.Duration {
	var d time.Duration
	for _, w := range r.Windows {
		if !w.InFlight || !r.Charges() {
			d = max(d, w.Per)
		}
	}
	return d
}

// Smallest is the smallest limit among the windows that count costs: no check may cost more.
func (r *Rule) Smallest() int64 {
	n := int64(MaxLimit)
	for _, w := range r.Windows {
		if w.Distinct == "" {
			n = min(n, w.Limit)
		}
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
	c.Algorithm = cmp.Or(r.Algorithm, DefaultAlgorithm)
	for _, o := range options {
		if o.defaults != nil {
			o.defaults(&c)
		}
	}
	return &c
}

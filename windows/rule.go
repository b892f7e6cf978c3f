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
	// shadow decides.
	Match string
	// Algorithm counts; default "sliding-log".
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
	// OnError decides a check when Redis cannot answer; default allow.
	OnError OnError
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
}

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
)

// Longest is the longest window of the rule.
func (r *Rule) Longest() time.Duration {
	var d time.Duration
	for _, w := range r.Windows {
		d = max(d, w.Per)
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
	shortest := r.Windows[0].Per
	for _, w := range r.Windows {
		shortest = min(shortest, w.Per)
	}
	return max(shortest/1000, time.Millisecond)
}

// withDefaults is a copy with the defaults filled in, all but Hold's: 0 is a
// choice there.
func (r *Rule) withDefaults() *Rule {
	c := *r
	c.Windows, c.Alerts = slices.Clone(r.Windows), slices.Clone(r.Alerts)
	c.Algorithm, c.OnError = cmp.Or(r.Algorithm, DefaultAlgorithm), cmp.Or(r.OnError, OnErrorAllow)
	if c.Algorithm == SlidingBuckets {
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
	case r.Match == "":
		return faultf("match", `match "": want a pattern over keys, as "user:*", or "*" for all`)
	case strings.ContainsFunc(r.Match, func(c rune) bool { return c == utf8.RuneError || api.Unprintable(c) }):
		return faultf("match", "match %q: want UTF-8 without control characters; no key has others", r.Match)
	case (len(r.Match)-len(strings.TrimRight(r.Match, `\`)))%2 == 1:
		return faultf("match", `match %s: want a character after the last \; \\ is the backslash itself`, r.Match)
	case !slices.Contains(Algorithms, r.Algorithm):
		return faultf("algorithm", "algorithm %q: want %s", r.Algorithm, strings.Join(Algorithms, ", "))
	case r.Algorithm != SlidingBuckets && r.Buckets != 0:
		return faultf("buckets", "buckets %d: only %s has buckets, not %s", r.Buckets, SlidingBuckets, r.Algorithm)
	case r.Algorithm == SlidingBuckets && (r.Buckets < 1 || r.Buckets > MaxBuckets):
		return faultf("buckets", "buckets %d: want a whole number from 1 to %d", r.Buckets, MaxBuckets)
	}
	if f := r.validateWindows(); f != nil {
		return f
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
	case r.OnError != OnErrorAllow && r.OnError != OnErrorDeny && r.OnError != OnErrorLocal:
		return faultf("on_error", "on_error %q: want %s, %s or %s", r.OnError, OnErrorAllow, OnErrorDeny, OnErrorLocal)
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
		limit, per := fmt.Sprintf("windows[%d].limit", i), fmt.Sprintf("windows[%d].per", i)
		switch {
		case w.Limit < 1 || w.Limit > MaxLimit:
			return faultf(limit, "limit %d: want a whole number from 1 to %d", w.Limit, MaxLimit)
		case w.Per < MinWindow || w.Per > MaxWindow || w.Per%time.Millisecond != 0:
			return faultf(per, "per %s: want %s to %s in whole milliseconds", inDays(w.Per), inDays(MinWindow),
				inDays(MaxWindow))
		}
		if j := slices.IndexFunc(r.Windows[:i], func(o Window) bool { return o.Per == w.Per }); j >= 0 {
			return &fault{per, fmt.Sprintf("windows[%d].per", j), fmt.Sprintf("per %s: want each span once in a rule",
				inDays(w.Per))}
		}
	}
	return nil
}

package compare

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// Names of the contestants that are not among windows.Algorithms.
const (
	InProcess = "in-process"
	GCRA      = "gcra"
	Oracle    = "oracle" // always included, never selected
)

// Names returns the algorithms that can be selected.
func Names() []string { return append(slices.Clone(windows.Algorithms), InProcess, GCRA) }

// CheckNames returns an error that names the unknown algorithm, and lists the known ones.
func CheckNames(names []string) error {
	for i, name := range names {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("%q: want some of %s", name, strings.Join(Names(), ", "))
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("%q: want each algorithm once", name)
		}
	}
	return nil
}

// NeedRedis reports whether any of the names counts in Redis; no names means all.
func NeedRedis(names []string) bool {
	return len(names) == 0 || slices.ContainsFunc(names, func(n string) bool {
		return slices.Contains(
			windows.Algorithms, n)
	})
}

// checker is the part of a counters.Counter that is used here.
type checker interface {
	Check(ctx context.Context, asks []counters.Request) (counters.Verdict, error)
}

// contestant is one algorithm that replays the trace.
type contestant struct {
	name   string
	kind   Kind
	decide func(ctx context.Context, r Request) (bool, error)
	ground *ground // its part of Redis; nil outside it
	tally  *tally

	at      int    // how many requests it has answered
	reached []bool // its verdicts that are not yet compared with the oracle
}

// clock is a contestant's time, in ms: the trace's, moved by shift.
type clock struct{ now, shift int64 }

func (c *clock) read() int64 { return c.now }

// byCounter returns a contestant that asks a counter. c is the clock with which the counter was made.
func byCounter(name string, kind Kind, counter checker, c *clock, rule *windows.Rule) *contestant {
	plan := windows.PlanOf(rule)
	return &contestant{name: name, kind: kind, tally: newTally(rule.Windows),
		decide: func(ctx context.Context, r Request) (bool, error) {
			c.now = r.Ms + c.shift
			v, err := counter.Check(ctx, []counters.Request{{Plan: plan, Key: r.Key, Cost: r.Cost}})
			return v.Allowed, err
		}}
}

func byModel(name string, kind Kind, ws []windows.Window, admit func(Request) bool) *contestant {
	return &contestant{name: name, kind: kind, tally: newTally(ws),
		decide: func(_ context.Context, r Request) (bool, error) { return admit(r), nil }}
}

// newOracle returns a contestant that admits exactly what the definition of the windows admits.
func newOracle(ws []windows.Window) *contestant {
	t := newTruth(ws)
	return byModel(Oracle, KindOracle, ws, func(r Request) bool {
		if t.excess(r) > 0 {
			return false
		}
		t.add(r)
		return true
	})
}

// RuleOf returns the rule for all contestants, with the given algorithm. The error is that of package windows for
// these windows.
func RuleOf(algorithm string, ws []windows.Window) (*windows.Rules, error) {
	return windows.NewRules([]*windows.Rule{{Name: "compare", Match: "*", Algorithm: algorithm, Windows: ws,
		Hold: windows.DefaultHold}})
}

// contestants returns the selected contestants, in the order of Names, and the oracle last. Each contestant in Redis
// counts under its own prefix.
func (r *runner) contestants(ctx context.Context) ([]*contestant, error) {
	var list []*contestant
	for i, name := range Names() {
		if len(r.Algorithms) > 0 && !slices.Contains(r.Algorithms, name) {
			continue
		}
		c := &clock{shift: shift(r.trace.Requests[0].Ms, r.Windows)}
		c.now = r.trace.Requests[0].Ms + c.shift
		switch name {
		case InProcess:
			rules, err := RuleOf("", r.Windows)
			if err != nil {
				return nil, err
			}
			list = append(list, byCounter(name, KindInProcess, counters.NewLocal(0, c.read), c, rules.List()[0]))
		case GCRA:
			list = append(list, byModel(name, KindBaseline, r.Windows, newGCRA(r.Windows).admit))
		default:
			rules, err := RuleOf(name, r.Windows)
			if err != nil {
				return nil, err
			}
			g, err := newGround(ctx, r.Redis, fmt.Sprintf("%s-%d", r.prefix, i), rules, c)
			if err != nil {
				return nil, err
			}
			one := byCounter(name, KindRedis, g.counter, c, rules.List()[0])
			one.ground = g
			list = append(list, one)
		}
	}
	return append(list, newOracle(r.Windows)), nil
}

// shift returns by how many ms to move a trace that begins near zero. There a window would begin before zero, and 0
// means "no time given" to the scripts. The edges of the longest window stay at the same requests.
func shift(first int64, ws []windows.Window) int64 {
	var longest int64
	for _, w := range ws {
		longest = max(longest, w.Per.Milliseconds())
	}
	if first > longest {
		return 0
	}
	return 2 * longest
}

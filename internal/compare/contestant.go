package compare

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
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
	inRedis := func(name string) bool { return slices.Contains(windows.Algorithms, name) }
	return len(names) == 0 || slices.ContainsFunc(names, inRedis)
}

// checker is the part of a counters.Counter that is used here.
type checker interface {
	Check(ctx context.Context, requests []counters.Request) (counters.Verdict, error)
}

// contestant is one algorithm that replays the trace. Each of its verdicts is compared with a recount of the requests
// that it admitted before.
type contestant struct {
	Result
	decide func(ctx context.Context, r Request) (bool, error)
	share  *redisShare // its keys and costs in Redis; nil if it does not count in Redis
	truth  *truth
}

// clock is the contestants' time, in ms: the trace's, moved by shift.
type clock struct{ now, shift int64 }

func (c *clock) read() int64 { return c.now }

// byCounter returns a contestant that calls a counter. c is the clock with which the counter was made.
func byCounter(name string, kind Kind, counter checker, c *clock, rule *windows.Rule) *contestant {
	plan := windows.PlanOf(rule)
	return &contestant{Result: Result{Algorithm: name, Kind: kind}, truth: newTruth(rule.Windows),
		decide: func(ctx context.Context, r Request) (bool, error) {
			c.now = r.Ms + c.shift
			v, err := counter.Check(ctx, []counters.Request{{Plan: plan, Key: r.Key, Cost: r.Cost}})
			return v.Allowed, err
		}}
}

func byModel(name string, kind Kind, ws []windows.Window, admit func(Request) bool) *contestant {
	return &contestant{Result: Result{Algorithm: name, Kind: kind}, truth: newTruth(ws),
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

// RuleOf returns the rule for all contestants, with this algorithm. The error is package windows' for these windows.
func RuleOf(algorithm string, ws []windows.Window) (*windows.Rules, error) {
	return windows.NewRules([]*windows.Rule{{Name: "compare", Match: "*", Algorithm: algorithm, Windows: ws,
		Hold: windows.DefaultHold}})
}

// contestants returns the selected contestants, in the order of Names, and the oracle last. Each contestant in Redis
// counts under a prefix that begins with prefix. first is the time of the first request.
func (c *Config) contestants(ctx context.Context, prefix string, first int64) ([]*contestant, error) {
	plain, err := RuleOf("", c.Windows)
	if err != nil {
		return nil, err
	}
	times := &clock{shift: shift(first, c.Windows)}
	times.now = first + times.shift
	var list []*contestant
	for i, name := range Names() {
		switch {
		case len(c.Algorithms) > 0 && !slices.Contains(c.Algorithms, name):
		case name == InProcess:
			local := counters.NewLocal(0, times.read)
			list = append(list, byCounter(name, KindInProcess, local, times, plain.List()[0]))
		case name == GCRA:
			list = append(list, byModel(name, KindBaseline, c.Windows, newGCRA(c.Windows).admit))
		default:
			rules, err := RuleOf(name, c.Windows)
			if err != nil {
				return nil, err
			}
			g, err := newRedisShare(ctx, c.Redis, fmt.Sprint(prefix, i), rules, times)
			if err != nil {
				return nil, err
			}
			one := byCounter(name, KindRedis, g.counter, times, rules.List()[0])
			one.share = g
			list = append(list, one)
		}
	}
	return append(list, newOracle(c.Windows)), nil
}

// shift returns by how many ms to move a trace that begins near zero: windows would begin before zero, and the scripts
// treat 0 as "no time given". It is a multiple of the longest window, so that its edges stay at the same requests.
func shift(first int64, ws []windows.Window) int64 {
	longest := longest(ws)
	if first > longest {
		return 0
	}
	return 2 * longest
}

// takeTurn answers the requests of one turn, and then compares the verdicts, which is not measured.
func (c *contestant) takeTurn(ctx context.Context, requests []Request) error {
	admitted := make([]bool, len(requests))
	answer := func() (err error) {
		for i, r := range requests {
			if admitted[i], err = c.decide(ctx, r); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
	measured := answer
	if c.share != nil {
		measured = func() error { return c.share.measure(ctx, requests, answer) }
	}
	if err := measured(); err != nil {
		return fmt.Errorf("%s: %w", c.Algorithm, err)
	}
	for i, r := range requests {
		c.take(r, admitted[i])
	}
	return nil
}

// take compares one verdict with the recount.
func (c *contestant) take(r Request, admitted bool) {
	c.OfferedRequests++
	c.OfferedUnits += r.Cost
	excess := c.truth.excess(r)
	switch {
	case admitted && excess > 0:
		c.OverAdmittedRequests++
		c.OverAdmittedUnits += r.Cost
		c.GreatestOvershoot = max(c.GreatestOvershoot, excess)
		c.FirstOverAdmitted = cmp.Or(c.FirstOverAdmitted, &moment{r.Ms, r.Key})
	case !admitted && excess <= 0:
		c.UnderAdmittedRequests++
		c.UnderAdmittedUnits += r.Cost
		c.FirstUnderAdmitted = cmp.Or(c.FirstUnderAdmitted, &moment{r.Ms, r.Key})
	}
	if admitted {
		c.AdmittedRequests++
		c.AdmittedUnits += r.Cost
		c.truth.add(r)
	}
}

// result returns what the contestant did with a trace of so many keys.
func (c *contestant) result(keys int) Result {
	r := c.Result
	if c.share != nil {
		r.RedisCPU = rounded(c.share.cpu/1000/float64(r.OfferedRequests), 2)
		if keys >= minKeysForMemory {
			r.BytesPerKey = rounded(c.share.memory/float64(keys), 0)
		}
	}
	return r
}

// gcra is a model of the generic cell rate algorithm (ITU-T I.371), which many limiters use. A request of one unit
// moves the key's theoretical arrival time by per/limit. It is admitted while that time is at most a whole window
// ahead, so that a burst of the limit passes. GCRA keeps one number per key. It bounds the rate, not the number of
// requests in a window. It is included because people compare an exact count with it.
type gcra struct {
	windows []windows.Window
	arrival map[string][]*big.Rat // key → per window, the theoretical arrival time in ms, which is never rounded
}

func newGCRA(ws []windows.Window) *gcra {
	return &gcra{windows: ws, arrival: map[string][]*big.Rat{}}
}

// admit admits the request if every window conforms; otherwise it changes nothing.
func (g *gcra) admit(r Request) bool {
	had := g.arrival[r.Key]
	next := make([]*big.Rat, len(g.windows))
	for i, w := range g.windows {
		now, per := big.NewRat(r.Ms, 1), big.NewRat(w.Per.Milliseconds(), 1)
		begins := now
		if had != nil && had[i].Cmp(now) > 0 {
			begins = had[i]
		}
		next[i] = new(big.Rat).Mul(per, big.NewRat(r.Cost, w.Limit))
		next[i].Add(next[i], begins)
		if next[i].Cmp(now.Add(now, per)) > 0 {
			return false
		}
	}
	g.arrival[r.Key] = next
	return true
}

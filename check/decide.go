package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// decision is what became of one call: the verdict of Redis, or of on_error.
type decision struct {
	windows.Verdict
	source api.Source
	// outcome is the metric's label, or its beginning where there is a standing.
	outcome string
	err     error
}

// lane asks one server, or on a Cluster the one of a partition. Each has its own
// breaker, as a partition that moves or fails over must not take the answer from
// the others. sony/gobreaker: small, widely used, no state of its own to keep.
type lane struct {
	breaker *gobreaker.CircuitBreaker[[]windows.Verdict]
	*gatherer
}

func newLane(counter *windows.Redis, timeout time.Duration) *lane {
	l := &lane{breaker: gobreaker.NewCircuitBreaker[[]windows.Verdict](gobreaker.Settings{
		Name:    "redis",
		Timeout: 500 * time.Millisecond, // open for this long, then one check tries
		ReadyToTrip: func(n gobreaker.Counts) bool {
			return n.ConsecutiveFailures >= 5
		},
		IsSuccessful: func(err error) bool {
			return err == nil || errors.Is(err, context.Canceled) || stream.IsRefusal(err) ||
				errors.Is(err, gobreaker.ErrOpenState) // of another lane of the same check
		},
	})}
	l.gatherer = newGatherer(timeout, func(ctx context.Context, calls [][]windows.Ask) ([]windows.Verdict, error) {
		return l.breaker.Execute(func() ([]windows.Verdict, error) { return counter.CheckMany(ctx, calls) })
	})
	return l
}

// decide asks Redis within the deadline; where it cannot answer, on_error decides.
func (s *Service) decide(ctx context.Context, asks []windows.Ask) decision {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	lanes := s.lanesOf(asks)
	if len(lanes) == 1 {
		return s.together(ctx, within, lanes[0], [][]windows.Ask{asks})[0]
	}
	verdict, err := s.across(within, lanes, asks)
	return s.settle(ctx, asks, verdict, err)
}

// decideEach decides calls of one key each, independently of each other, those of
// one lane together.
func (s *Service) decideEach(ctx context.Context, calls [][]windows.Ask) []decision {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	if len(s.lanes) == 1 {
		return s.together(ctx, within, 0, calls)
	}
	byLane := map[int][]int{} // lane → its calls
	for i, asks := range calls {
		lane := s.config.Counter.Lane(asks[0].Key)
		byLane[lane] = append(byLane[lane], i)
	}
	out := make([]decision, len(calls))
	var running sync.WaitGroup
	for lane, mine := range byLane {
		running.Go(func() {
			some := make([][]windows.Ask, len(mine))
			for n, i := range mine {
				some[n] = calls[i]
			}
			for n, d := range s.together(ctx, within, lane, some) {
				out[mine[n]] = d
			}
		})
	}
	running.Wait()
	return out
}

// together decides calls of one lane.
func (s *Service) together(ctx, within context.Context, lane int, calls [][]windows.Ask) []decision {
	verdicts, err := s.lanes[lane].do(within, calls)
	out := make([]decision, len(calls))
	for i, asks := range calls {
		var v windows.Verdict
		if err == nil {
			v = verdicts[i]
		}
		out[i] = s.settle(ctx, asks, v, err)
	}
	return out
}

var onlyLane = []int{0}

// lanesOf gives the lanes that answer for the keys, each once.
func (s *Service) lanesOf(asks []windows.Ask) []int {
	if len(s.lanes) == 1 {
		return onlyLane
	}
	lanes := make([]int, 0, 1)
	for _, a := range asks {
		if lane := s.config.Counter.Lane(a.Key); !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

// across asks for keys of several lanes, through the breaker of each.
func (s *Service) across(ctx context.Context, lanes []int, asks []windows.Ask) (windows.Verdict, error) {
	ask := func() ([]windows.Verdict, error) {
		v, err := s.config.Counter.Check(ctx, asks)
		return []windows.Verdict{v}, err
	}
	for _, lane := range lanes {
		inner := ask
		ask = func() ([]windows.Verdict, error) { return s.lanes[lane].breaker.Execute(inner) }
	}
	v, err := ask()
	if err != nil {
		return windows.Verdict{}, err
	}
	return v[0], nil
}

// refund gives units back and tells where the key stands, nil where Redis cannot
// answer and on_error does not say deny: then they may not be back.
func (s *Service) refund(ctx context.Context, rule *windows.Rule, key string, units int64) (*windows.Standing, error) {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var st windows.Standing
	_, err := s.lanes[s.config.Counter.Lane(key)].breaker.Execute(func() ([]windows.Verdict, error) {
		var err error
		_, st, err = s.config.Counter.Refund(within, rule, key, units)
		return nil, err
	})
	if err == nil {
		return &st, nil
	}
	if d := s.settle(ctx, []windows.Ask{{Rule: rule, Key: key}}, windows.Verdict{}, err); d.source == api.SourcePolicy {
		return nil, d.err
	}
	return nil, nil
}

// settle makes a decision of what Redis said, and where it could not answer of
// the strictest on_error among the rules: deny, then local, then allow.
func (s *Service) settle(ctx context.Context, asks []windows.Ask, v windows.Verdict, err error) decision {
	if err == nil {
		return decision{v, api.SourceRedis, "", nil}
	}
	if ctx.Err() != nil {
		return decision{windows.Verdict{}, api.SourcePolicy, "canceled", fmt.Errorf("check: %w", ctx.Err())}
	}
	policy := windows.OnErrorAllow
	for _, a := range asks {
		switch {
		case a.Rule.Shadow:
		case a.Rule.OnError == windows.OnErrorDeny:
			policy = windows.OnErrorDeny
		case a.Rule.OnError == windows.OnErrorLocal && policy == windows.OnErrorAllow:
			policy = windows.OnErrorLocal
		}
	}
	switch policy {
	case windows.OnErrorDeny:
		return decision{windows.Verdict{Atomic: true}, api.SourcePolicy, "error_deny", fmt.Errorf("%w: %w", api.ErrUnavailable, err)}
	case windows.OnErrorLocal:
		v, err := s.local.Check(ctx, asks)
		return decision{v, api.SourceLocal, "local_", err}
	}
	return decision{windows.Verdict{Allowed: true, Atomic: true}, api.SourcePolicy, "error_allow", nil}
}

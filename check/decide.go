package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// ErrPartlyCharged: of a call over several shards some are charged, and another
// did not answer.
var ErrPartlyCharged = errors.New("some keys may be charged")

// decision is what became of one call: the verdict of Redis, or of on_error.
type decision struct {
	windows.Verdict
	source api.Source
	// outcome is the metric's label, or its beginning where the counter answered.
	outcome string
	err     error
	// unasked says of which items nothing is known, as another key of the call is denied
	// from memory; nil: of none.
	unasked []bool
}

// decide asks Redis within the deadline; where it cannot answer, on_error decides.
func (s *Service) decide(ctx context.Context, c *call) decision {
	if len(c.asks) == 0 {
		return decision{Verdict: windows.Verdict{Allowed: !c.never, Atomic: true}, source: api.SourcePolicy}
	}
	if d, ok := s.fromMemory(c); ok {
		return d
	}
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var verdict windows.Verdict
	var err error
	switch shards := s.shardsOf(c.asks); {
	case c.never:
		verdict, err = s.look(within, shards, c.asks)
		verdict.Allowed = false
	case len(shards) == 1:
		verdict, err = s.one(within, shards[0], c.asks)
	default:
		verdict, err = s.across(within, shards, c.asks)
	}
	asks := c.asks
	if c.never {
		asks = withoutCost(asks) // on_error may count in this process
	}
	d := s.resolve(ctx, asks, verdict, err)
	d.Allowed = d.Allowed && !c.never
	return d
}

// withoutCost is what looks at the keys of asks and charges none.
func withoutCost(asks []windows.Request) []windows.Request {
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i].Cost = 0
	}
	return asks
}

// decideEach decides calls of one request each, independently of each other, those
// of one shard together.
func (s *Service) decideEach(ctx context.Context, calls []*call) []decision {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	out := make([]decision, len(calls))
	byShard := map[int][]int{} // shard → its calls
	for i, c := range calls {
		if len(c.asks) == 0 {
			out[i] = s.decide(ctx, c)
			continue
		}
		if d, ok := s.fromMemory(c); ok {
			out[i] = d
			continue
		}
		n := s.config.Counter.Lane(c.asks[0].Key)
		byShard[n] = append(byShard[n], i)
	}
	var running sync.WaitGroup
	for n, mine := range byShard {
		running.Go(func() {
			asks := make([][]windows.Request, len(mine))
			for j, i := range mine {
				asks[j] = calls[i].asks
			}
			verdicts, err := s.shards[n].do(within, asks)
			for j, i := range mine {
				if j < len(verdicts) && verdicts[j].Answered() {
					out[i] = s.resolve(ctx, calls[i].asks, verdicts[j], nil)
				} else {
					out[i] = s.resolve(ctx, calls[i].asks, windows.Verdict{}, err)
				}
			}
		})
	}
	running.Wait()
	return out
}

// shardsOf gives the shards that answer for the keys, each once.
func (s *Service) shardsOf(asks []windows.Request) []int {
	shards := make([]int, 0, 1)
	for _, a := range asks {
		if n := s.config.Counter.Lane(a.Key); !slices.Contains(shards, n) {
			shards = append(shards, n)
		}
	}
	return shards
}

// one decides asks of one shard in one step.
func (s *Service) one(ctx context.Context, shard int, asks []windows.Request) (windows.Verdict, error) {
	verdicts, err := s.shards[shard].do(ctx, [][]windows.Request{asks})
	if err != nil {
		return windows.Verdict{}, err
	}
	return verdicts[0], nil
}

// across decides asks of several shards: all are looked at first, and only if all
// would be admitted they are charged, one shard after the other. A race can then
// charge some keys of a call that is denied in the end, so Atomic is false. Each
// shard is asked behind its own breaker.
func (s *Service) across(ctx context.Context, shards []int, asks []windows.Request) (windows.Verdict, error) {
	v, err := s.look(ctx, shards, asks)
	if err != nil || !v.Allowed {
		return v, err
	}
	for n, shard := range shards {
		mine, some := s.asksOf(shard, asks)
		got, err := s.one(ctx, shard, some)
		if err != nil {
			if n > 0 {
				err = fmt.Errorf("%w: %w", ErrPartlyCharged, err)
			}
			return windows.Verdict{}, err
		}
		v.Allowed = got.Allowed
		v.Transitions += got.Transitions
		for j, i := range mine {
			v.Items[i] = got.Items[j]
		}
		if !v.Allowed {
			break
		}
	}
	return v, nil
}

// look answers asks without charging any, each shard by itself: what each key
// would be told now.
func (s *Service) look(ctx context.Context, shards []int, asks []windows.Request) (windows.Verdict, error) {
	v := windows.Verdict{Allowed: true, Atomic: len(shards) == 1, Items: make([]windows.KeyState, len(asks))}
	errs := make([]error, len(shards))
	var running sync.WaitGroup
	for n, shard := range shards {
		running.Go(func() {
			mine, some := s.asksOf(shard, asks)
			got, err := s.one(ctx, shard, withoutCost(some))
			errs[n] = err
			for j := range got.Items {
				v.Items[mine[j]] = got.Items[j]
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return windows.Verdict{}, err
		}
	}
	for i, a := range asks {
		v.Items[i].Want(a)
		v.Allowed = v.Allowed && v.Items[i].RetryAfter == 0
	}
	return v, nil
}

// asksOf gives the asks of a shard, and where they stand among all.
func (s *Service) asksOf(shard int, asks []windows.Request) (at []int, some []windows.Request) {
	for i, a := range asks {
		if s.config.Counter.Lane(a.Key) == shard {
			at, some = append(at, i), append(some, a)
		}
	}
	return at, some
}

// refund gives units back and tells where the key stands, nil where Redis cannot
// answer and on_error does not say deny: then they may not be back.
func (s *Service) refund(ctx context.Context, plan *windows.Plan, key string, units int64) (*windows.KeyState, error) {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var st windows.KeyState
	_, err := s.shards[s.config.Counter.Lane(key)].execute(within, func() ([]windows.Verdict, error) {
		var err error
		_, st, err = s.config.Counter.Refund(within, plan, key, units)
		return nil, err
	})
	s.denials.forget(key)
	if err == nil {
		return &st, nil
	}
	if d := s.resolve(ctx, []windows.Request{{Plan: plan, Key: key}}, windows.Verdict{},
		err); d.source == api.SourcePolicy {
		return nil, d.err
	}
	return nil, nil
}

// resolve makes a decision of what Redis said, and where it could not answer of
// the strictest on_error among the rules: deny, then local, then allow.
func (s *Service) resolve(ctx context.Context, asks []windows.Request, v windows.Verdict, err error) decision {
	switch {
	case err == nil:
		s.outage.byRedis()
		return decision{Verdict: v, source: api.SourceRedis}
	case s.config.NoAnswer != nil:
		return decision{source: api.SourcePolicy, outcome: "no_answer", err: s.config.NoAnswer(err)}
	case ctx.Err() != nil:
		return decision{source: api.SourcePolicy, outcome: "canceled", err: fmt.Errorf("check: %w", ctx.Err())}
	}
	policy := windows.OnErrorAllow
	for _, a := range asks {
		switch live := a.Plan.Live; {
		case live == nil:
		case live.OnError == windows.OnErrorDeny:
			policy = windows.OnErrorDeny
		case live.OnError == windows.OnErrorLocal && policy == windows.OnErrorAllow:
			policy = windows.OnErrorLocal
		}
	}
	s.outage.byPolicy(policy, len(asks))
	switch policy {
	case windows.OnErrorDeny:
		return decision{Verdict: windows.Verdict{Atomic: true}, source: api.SourcePolicy, outcome: "error_deny",
			err: fmt.Errorf("%w: %w", api.ErrUnavailable, err)}
	case windows.OnErrorLocal:
		v, err := s.local.Check(ctx, asks)
		return decision{Verdict: v, source: api.SourceLocal, outcome: "local_", err: err}
	}
	return decision{Verdict: windows.Verdict{Allowed: true, Atomic: true}, source: api.SourcePolicy,
		outcome: "error_allow"}
}

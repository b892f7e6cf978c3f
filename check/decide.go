package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/windows"
)

// ErrPartlyCharged means that a call over several shards was charged in some of them, and another shard did not
// answer.
var ErrPartlyCharged = errors.New("some keys may be charged")

// decision is the outcome of one call: the verdict of Redis, of an answerer, or of on_error.
type decision struct {
	counters.Verdict
	source api.Source
	// outcome is the metric's label, or only its beginning if the counter answered.
	outcome string
	err     error
	why     error // on_error allowed because of it
	// unasked marks the items of which nothing is known, because another key of the call is denied from memory. nil:
	// there are none.
	unasked []bool
}

// decide decides a call from memory or in Redis, within the timeout. If Redis cannot answer, on_error decides.
func (s *Service) decide(ctx context.Context, c *call) decision {
	if len(c.asks) == 0 {
		return decision{Verdict: counters.Verdict{Allowed: !c.never, Atomic: true}, source: api.SourcePolicy}
	}
	came, now := s.denials.now(), time.Now()
	until, waits := now.Add(s.config.Timeout), now.Add(s.config.Timeout/4) // a check must fit in afterwards
	if d, ok := s.answerFromMemory(ctx, c, came, waits); ok {
		return d
	}
	asks := c.asks
	if c.never {
		asks = withMode(asks, api.ModeLook) // on_error may count in this process
	}
	var verdict counters.Verdict
	var err error
	switch shards := s.shardsOf(c.asks); {
	case c.never:
		if verdict, err = s.look(ctx, until, shards, c.asks); err == nil {
			verdict.Allowed = false
			err = s.chargeDenied(ctx, until, shards, c.asks, &verdict)
		}
	case len(shards) == 1:
		verdict, err = s.askShard(ctx, until, shards[0], c.asks)
	default:
		verdict, err = s.askShards(ctx, until, shards, c.asks)
	}
	d := s.resolve(ctx, asks, verdict, err)
	d.Allowed = d.Allowed && !c.never
	return d
}

// withMode copies asks with another mode. They keep their Memory, but a look only reads it.
func withMode(asks []counters.Request, mode api.Mode) []counters.Request {
	asks = slices.Clone(asks)
	for i := range asks {
		asks[i].Mode = mode
		if mode == api.ModeLook {
			asks[i].Memory = asks[i].Memory.ReadOnly()
		}
	}
	return asks
}

// decideEach decides calls of one request each, independently of each other. Calls of the same shard are sent
// together.
func (s *Service) decideEach(ctx context.Context, calls []*call) []decision {
	came, until := s.denials.now(), time.Now().Add(s.config.Timeout)
	out := make([]decision, len(calls))
	byShard := map[int][]int{} // shard → its calls
	for i, c := range calls {
		if len(c.asks) == 0 {
			out[i] = s.decide(ctx, c)
			continue
		}
		if d, ok := s.answerFromMemory(ctx, c, came, time.Time{}); ok {
			out[i] = d
			continue
		}
		n := s.config.Counter.Shard(c.asks[0].Key)
		byShard[n] = append(byShard[n], i)
	}
	var running sync.WaitGroup
	for n, mine := range byShard {
		running.Go(func() {
			asks := make([][]counters.Request, len(mine))
			for j, i := range mine {
				asks[j] = calls[i].asks
			}
			verdicts, err := s.shards[n].ask(ctx, until, asks)
			for j, i := range mine {
				if j < len(verdicts) && verdicts[j].Answered() {
					out[i] = s.resolve(ctx, calls[i].asks, verdicts[j], nil)
				} else {
					out[i] = s.resolve(ctx, calls[i].asks, counters.Verdict{}, err)
				}
			}
		})
	}
	running.Wait()
	return out
}

// onlyShard is the list of shards if Redis is one server.
var onlyShard = []int{0}

// shardsOf returns the shards of the keys, each shard once.
func (s *Service) shardsOf(asks []counters.Request) []int {
	if len(s.shards) == 1 {
		return onlyShard
	}
	shards := make([]int, 0, 1)
	for _, a := range asks {
		if n := s.config.Counter.Shard(a.Key); !slices.Contains(shards, n) {
			shards = append(shards, n)
		}
	}
	return shards
}

// askShard decides asks of one shard in one step.
func (s *Service) askShard(ctx context.Context, until time.Time, shard int,
	asks []counters.Request) (counters.Verdict, error) {
	verdicts, err := s.shards[shard].ask(ctx, until, [][]counters.Request{asks})
	if err != nil {
		return counters.Verdict{}, err
	}
	return verdicts[0], nil
}

// askShards decides asks of several shards. It looks at all of them first. Only if all would be admitted, it charges
// them, one shard after the other. Because of a race, some keys of a call can be charged although the call is denied
// in the end, so Atomic is false. Each shard is behind its own breaker. It remembers what it charged in the call's
// Memory: if the call is sent again, the charge counts as admitted.
func (s *Service) askShards(ctx context.Context, until time.Time, shards []int,
	asks []counters.Request) (counters.Verdict, error) {
	if asks[0].Mode == api.ModeCharge { // no answer depends on another shard
		v := counters.Verdict{Allowed: true, Items: make([]windows.KeyState, len(asks))}
		return v, s.charge(ctx, until, shards, asks, &v, false)
	}
	v, err := s.look(ctx, until, shards, asks)
	if err != nil || v.OtherBody {
		return v, err
	}
	if !v.Allowed {
		return v, s.chargeDenied(ctx, until, shards, asks, &v)
	}
	return v, s.charge(ctx, until, shards, asks, &v, true)
}

// charge charges asks of several shards, one shard after the other, into the verdict. With stop it ends at the first
// shard that denies. In the shards after it, only the asks that are charged even if denied (ChargesDenied) are then
// charged.
func (s *Service) charge(ctx context.Context, until time.Time, shards []int, asks []counters.Request,
	v *counters.Verdict, stop bool) error {
	replayed := 0
	for n, shard := range shards {
		mine, some := s.asksOf(shard, asks)
		got, err := s.askShard(ctx, until, shard, some)
		if err != nil {
			*v = counters.Verdict{}
			if n > 0 {
				err = fmt.Errorf("%w: %w", ErrPartlyCharged, err)
			}
			return err
		}
		v.Allowed = v.Allowed && got.Allowed
		v.OtherBody = v.OtherBody || got.OtherBody
		v.Transitions += got.Transitions
		if got.Replayed {
			replayed++
		}
		for j, i := range mine {
			v.Items[i] = got.Items[j]
		}
		if stop && !got.Allowed {
			return s.chargeDenied(ctx, until, shards[n+1:], asks, v)
		}
	}
	v.Replayed = replayed == len(shards)
	return nil
}

// chargeDenied charges the asks of a denied call that count anyway (ChargesDenied), in these shards. In the verdict,
// their states become those after the charge.
func (s *Service) chargeDenied(ctx context.Context, until time.Time, shards []int, asks []counters.Request,
	v *counters.Verdict) error {
	for _, shard := range shards {
		mine, some := s.asksOf(shard, asks)
		var charged []counters.Request
		var at []int // in charged → in asks
		for j, a := range some {
			if a.ChargesDenied() {
				charged, at = append(charged, a), append(at, mine[j])
			}
		}
		if len(charged) == 0 {
			continue
		}
		looks := withMode(charged, api.ModeLook)
		charged = withMode(charged, api.ModeCharge)
		charged[0].Memory, looks[0].Memory = some[0].Memory, nil
		got, err := s.shards[shard].ask(ctx, until, [][]counters.Request{charged, looks})
		if err != nil {
			*v = counters.Verdict{}
			return fmt.Errorf("%w: %w", ErrPartlyCharged, err)
		}
		v.OtherBody = v.OtherBody || got[0].OtherBody
		for j, i := range at {
			v.Items[i] = got[1].Items[j]
			v.Items[i].Shadows = got[0].Items[j].Shadows
		}
	}
	return nil
}

// look answers asks without charging any, each shard separately: the answer that each key would get now. If the
// Memory of the call has an answer, look returns that.
func (s *Service) look(ctx context.Context, until time.Time, shards []int,
	asks []counters.Request) (counters.Verdict, error) {
	v := counters.Verdict{Allowed: true, Atomic: len(shards) == 1, Items: make([]windows.KeyState, len(asks))}
	errs, got := make([]error, len(shards)), make([]counters.Verdict, len(shards))
	var running sync.WaitGroup
	for n, shard := range shards {
		running.Go(func() {
			mine, some := s.asksOf(shard, asks)
			got[n], errs[n] = s.askShard(ctx, until, shard, withMode(some, api.ModeLook))
			for j := range got[n].Items {
				v.Items[mine[j]] = got[n].Items[j]
			}
		})
	}
	running.Wait()
	for n, err := range errs {
		if err != nil {
			return counters.Verdict{}, err
		}
		v.Allowed = v.Allowed && got[n].Allowed
		v.OtherBody = v.OtherBody || got[n].OtherBody
	}
	return v, nil
}

// asksOf returns the asks of a shard, and their indexes in asks.
func (s *Service) asksOf(shard int, asks []counters.Request) (at []int, some []counters.Request) {
	for i, a := range asks {
		if s.config.Counter.Shard(a.Key) == shard {
			at, some = append(at, i), append(some, a)
		}
	}
	if len(some) > 0 {
		some[0].Memory = asks[0].Memory // of the whole call
	}
	return at, some
}

// refund gives units back and returns the state of the key. If Redis cannot answer and on_error does not say deny,
// the state and the error are nil, and the units may not be back.
func (s *Service) refund(ctx context.Context, plan *windows.Plan, key string, units int64) (*windows.KeyState, error) {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var st windows.KeyState
	_, err := s.shards[s.config.Counter.Shard(key)].execute(within, func() ([]counters.Verdict, error) {
		var err error
		_, st, err = s.config.Counter.Refund(within, plan, key, units)
		return nil, err
	})
	s.changed(key, freed)
	if err == nil {
		return &st, nil
	}
	if d := s.resolve(ctx, []counters.Request{{Plan: plan, Key: key}}, counters.Verdict{},
		err); d.source == api.SourcePolicy {
		return nil, d.err
	}
	return nil, nil
}

// resolve takes the verdict of Redis. If Redis did not answer, the strictest on_error among
// the rules decides: deny, then local, then allow.
func (s *Service) resolve(ctx context.Context, asks []counters.Request, v counters.Verdict, err error) decision {
	switch {
	case err == nil && v.OtherBody:
		s.outage.byRedis()
		return decision{Verdict: counters.Verdict{OtherBody: true}, source: api.SourceRedis, outcome: "key_reused",
			err: errOtherBody}
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
	s.outage.byPolicy(policy, asks, err)
	switch policy {
	case windows.OnErrorDeny:
		return decision{Verdict: counters.Verdict{Atomic: true}, source: api.SourcePolicy, outcome: "error_deny",
			err: fmt.Errorf("%w: %w", api.ErrUnavailable, err)}
	case windows.OnErrorLocal:
		v, err := s.local.Check(ctx, asks)
		return decision{Verdict: v, source: api.SourceLocal, outcome: "local_", err: err}
	}
	return decision{Verdict: counters.Verdict{Allowed: true, Atomic: true}, source: api.SourcePolicy,
		outcome: "error_allow", why: err}
}

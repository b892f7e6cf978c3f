package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
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
	why     error // because of which on_error allowed the call
	// skipped marks the items that were not evaluated, because another key of the call is denied from memory. nil:
	// there are none.
	skipped []bool
}

// decide decides a call from memory or in Redis, within the timeout. If Redis cannot answer, on_error decides.
func (s *Service) decide(ctx context.Context, c *call) decision {
	if len(c.byKey) == 0 {
		return decision{Verdict: counters.Verdict{Allowed: !c.never, Atomic: true}, source: api.SourcePolicy}
	}
	arrived, now := s.denials.now(), time.Now()
	until, waitUntil := now.Add(s.config.Timeout), now.Add(s.config.Timeout/4) // a check in Redis must follow in time
	if d, ok := s.answerWithoutRedis(ctx, c, arrived, waitUntil); ok {
		return d
	}
	requests := c.byKey
	if c.never {
		requests = withMode(requests, api.ModeLook) // on_error may count in this process
	}
	var verdict counters.Verdict
	var err error
	switch {
	case c.never:
		parts := s.partsOf(c.byKey)
		if verdict, err = s.look(ctx, until, parts); err == nil {
			verdict.Allowed = false
			err = s.chargeDenied(ctx, until, parts, &verdict)
		}
	case len(s.shards) == 1: // as below, without the copies
		verdict, err = s.askShard(ctx, until, 0, c.byKey)
	default:
		verdict, err = s.askShards(ctx, until, s.partsOf(c.byKey))
	}
	d := s.resolve(ctx, requests, verdict, err)
	d.Allowed = d.Allowed && !c.never
	return d
}

// withMode copies requests with another mode. They keep their Replay, but a look only reads it.
func withMode(requests []counters.Request, mode api.Mode) []counters.Request {
	requests = slices.Clone(requests)
	for i := range requests {
		requests[i].Mode = mode
		if mode == api.ModeLook {
			requests[i].Replay = requests[i].Replay.ReadOnly()
		}
	}
	return requests
}

// decideEach decides calls of one request each, independently of each other. Calls of the same shard are sent
// together.
func (s *Service) decideEach(ctx context.Context, calls []*call) []decision {
	arrived, until := s.denials.now(), time.Now().Add(s.config.Timeout)
	out := make([]decision, len(calls))
	byShard := map[int][]int{} // shard → its calls
	for i, c := range calls {
		if len(c.byKey) == 0 {
			out[i] = s.decide(ctx, c)
			continue
		}
		if d, ok := s.answerWithoutRedis(ctx, c, arrived, time.Time{}); ok {
			out[i] = d
			continue
		}
		n := s.config.Counter.Shard(c.byKey[0].Key)
		byShard[n] = append(byShard[n], i)
	}
	var running sync.WaitGroup
	for n, mine := range byShard {
		running.Go(func() {
			requests := make([][]counters.Request, len(mine))
			for j, i := range mine {
				requests[j] = calls[i].byKey
			}
			verdicts, err := s.shards[n].ask(ctx, until, requests)
			for j, i := range mine {
				if j < len(verdicts) && verdicts[j].Answered() {
					out[i] = s.resolve(ctx, calls[i].byKey, verdicts[j], nil)
				} else {
					out[i] = s.resolve(ctx, calls[i].byKey, counters.Verdict{}, err)
				}
			}
		})
	}
	running.Wait()
	return out
}

// part has the requests of a call whose keys are of one shard.
type part struct {
	shard    int
	requests []counters.Request
	at       []int // index in requests → index in call.byKey
}

// addTo adds the verdict on a part to the verdict on its call.
func (p part) addTo(v *counters.Verdict, got counters.Verdict) {
	v.Allowed = v.Allowed && got.Allowed
	v.OtherBody = v.OtherBody || got.OtherBody
	for j, item := range got.Items {
		v.Items[p.at[j]] = item
	}
}

// partsOf divides the requests of a call by shard. The first request of each part has the Replay of the call.
func (s *Service) partsOf(requests []counters.Request) (parts []part) {
	for i, a := range requests {
		shard := s.config.Counter.Shard(a.Key)
		n := slices.IndexFunc(parts, func(p part) bool { return p.shard == shard })
		if n < 0 {
			a.Replay = requests[0].Replay
			n, parts = len(parts), append(parts, part{shard: shard})
		}
		parts[n].requests, parts[n].at = append(parts[n].requests, a), append(parts[n].at, i)
	}
	return parts
}

// askShard decides requests of one shard in one step.
func (s *Service) askShard(ctx context.Context, until time.Time, shard int,
	requests []counters.Request) (counters.Verdict, error) {
	verdicts, err := s.shards[shard].ask(ctx, until, [][]counters.Request{requests})
	if err != nil {
		return counters.Verdict{}, err
	}
	return verdicts[0], nil
}

// askShards decides a call of several shards. It looks at all of them first. Only if all would be admitted, it charges
// them, one shard after the other. Because of a race, some keys of a call can be charged although the call is denied
// in the end, so Atomic is false. Each shard is behind its own breaker. It remembers what it charged in the call's
// Replay: if the call is sent again, the charge counts as admitted.
func (s *Service) askShards(ctx context.Context, until time.Time, parts []part) (counters.Verdict, error) {
	if len(parts) == 1 {
		return s.askShard(ctx, until, parts[0].shard, parts[0].requests)
	}
	if parts[0].requests[0].Mode == api.ModeCharge { // no answer depends on another shard
		v := newVerdict(parts)
		return v, s.charge(ctx, until, parts, &v, false)
	}
	v, err := s.look(ctx, until, parts)
	if err != nil || v.OtherBody {
		return v, err
	}
	if !v.Allowed {
		return v, s.chargeDenied(ctx, until, parts, &v)
	}
	return v, s.charge(ctx, until, parts, &v, true)
}

// newVerdict returns a verdict that allows all.
func newVerdict(parts []part) counters.Verdict {
	n := 0
	for _, p := range parts {
		n += len(p.requests)
	}
	return counters.Verdict{Allowed: true, Atomic: len(parts) == 1, Items: make([]windows.KeyState, n)}
}

// charge charges parts, one after the other, and adds the outcomes to the verdict. With stop, it charges no more parts
// after the first shard that denies, except the requests that are charged even if denied (ChargesDenied).
func (s *Service) charge(ctx context.Context, until time.Time, parts []part, v *counters.Verdict, stop bool) error {
	replayed := 0
	for n, p := range parts {
		got, err := s.askShard(ctx, until, p.shard, p.requests)
		if err != nil {
			*v = counters.Verdict{}
			if n > 0 {
				err = fmt.Errorf("%w: %w", ErrPartlyCharged, err)
			}
			return err
		}
		p.addTo(v, got)
		if got.Replayed {
			replayed++
		}
		if stop && !got.Allowed {
			return s.chargeDenied(ctx, until, parts[n+1:], v)
		}
	}
	v.Replayed = replayed == len(parts)
	return nil
}

// chargeDenied charges, in these parts of a denied call, the requests that are charged even if denied (ChargesDenied).
// It puts their states after the charge into the verdict.
func (s *Service) chargeDenied(ctx context.Context, until time.Time, parts []part, v *counters.Verdict) error {
	for _, p := range parts {
		var charged []counters.Request
		var at []int // index in charged → index in call.byKey
		for j, a := range p.requests {
			if a.ChargesDenied() {
				charged, at = append(charged, a), append(at, p.at[j])
			}
		}
		if len(charged) == 0 {
			continue
		}
		looks := withMode(charged, api.ModeLook)
		charged = withMode(charged, api.ModeCharge)
		charged[0].Replay, looks[0].Replay = p.requests[0].Replay, nil
		got, err := s.shards[p.shard].ask(ctx, until, [][]counters.Request{charged, looks})
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

// look requests a verdict on each part alone, and charges nothing. If the Replay of the call has an answer, look
// returns that answer.
func (s *Service) look(ctx context.Context, until time.Time, parts []part) (counters.Verdict, error) {
	v := newVerdict(parts)
	got := make([]counters.Verdict, len(parts))
	var running errgroup.Group
	for n, p := range parts {
		running.Go(func() (err error) {
			got[n], err = s.askShard(ctx, until, p.shard, withMode(p.requests, api.ModeLook))
			return err
		})
	}
	if err := running.Wait(); err != nil {
		return counters.Verdict{}, err
	}
	for n, p := range parts {
		p.addTo(&v, got[n])
	}
	return v, nil
}

// refund gives units back and returns the state of the key. If Redis cannot answer and on_error is not deny, the
// state and the error are nil, and it is not known whether the units came back.
func (s *Service) refund(ctx context.Context, plan *windows.Plan, key string, units int64) (*windows.KeyState, error) {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	var st windows.KeyState
	err := s.shards[s.config.Counter.Shard(key)].execute(within, func() (err error) {
		_, st, err = s.config.Counter.Refund(within, plan, key, units)
		return err
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
func (s *Service) resolve(ctx context.Context, requests []counters.Request, v counters.Verdict, err error) decision {
	switch {
	case err == nil && v.OtherBody:
		s.outage.redisAnswered()
		return decision{Verdict: counters.Verdict{OtherBody: true}, source: api.SourceRedis, outcome: "key_reused",
			err: errOtherBody}
	case err == nil:
		s.outage.redisAnswered()
		return decision{Verdict: v, source: api.SourceRedis}
	case s.config.NoAnswer != nil:
		return decision{source: api.SourcePolicy, outcome: "no_answer", err: s.config.NoAnswer(err)}
	case pause.Gone(ctx) != nil:
		return decision{source: api.SourcePolicy, outcome: "canceled", err: fmt.Errorf("check: %w", pause.Gone(ctx))}
	}
	policy := windows.OnErrorAllow
	for _, a := range requests {
		if a.Plan.Live == nil {
			continue
		}
		if live := a.Plan.Live.WithoutRedis(); live == windows.OnErrorDeny || policy == windows.OnErrorAllow {
			policy = live
		}
	}
	s.outage.decidedByPolicy(policy, requests, err)
	switch policy {
	case windows.OnErrorDeny:
		return decision{Verdict: counters.Verdict{Atomic: true}, source: api.SourcePolicy, outcome: "error_deny",
			err: fmt.Errorf("%w: %w", api.ErrUnavailable, err)}
	case windows.OnErrorLocal:
		v, err := s.local.Check(ctx, requests)
		return decision{Verdict: v, source: api.SourceLocal, outcome: "local_", err: err}
	}
	return decision{Verdict: counters.Verdict{Allowed: true, Atomic: true}, source: api.SourcePolicy,
		outcome: "error_allow", why: err}
}

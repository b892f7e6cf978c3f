package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// relayLock is what a relay's lock of a partition lasts (consumers.Config).
const relayLock = 3 * time.Second

// fault is one kind. It does its harm and repairs what it must not leave; what it
// stopped is running again when it returns.
type fault struct {
	name string
	do   func(ctx context.Context, s *system, r *rand.Rand, rec *record) error
}

var faults = []fault{
	{"worker killed", func(_ context.Context, s *system, r *rand.Rand, _ *record) error {
		p := s.work[r.IntN(len(s.work))]
		p.Kill()
		p.Start()
		return nil
	}},
	{"worker frozen beyond min-idle", frozen(1500*time.Millisecond, 2500)},
	{"relay frozen beyond its lock", frozen(relayLock, 1000)},
	{"server killed", func(_ context.Context, s *system, _ *rand.Rand, _ *record) error {
		s.serve.Kill()
		s.serve.Start()
		return nil
	}},
	{"replies lost", func(_ context.Context, s *system, r *rand.Rand, _ *record) error {
		for _, p := range s.proxies() {
			p.LoseReplies(r.IntN(4))
		}
		return nil
	}},
	{"replies delayed", func(ctx context.Context, s *system, r *rand.Rand, _ *record) error {
		p := s.anyProxy(r)
		p.Delay(time.Duration(20+r.IntN(300)) * time.Millisecond)
		pause.For(ctx, time.Second)
		p.Delay(0)
		return nil
	}},
	{"connections cut", func(_ context.Context, s *system, r *rand.Rand, _ *record) error {
		s.anyProxy(r).Sever()
		return nil
	}},
	{"connections half closed", func(_ context.Context, s *system, r *rand.Rand, _ *record) error {
		s.anyProxy(r).HalfClose()
		return nil
	}},
	{"events claimed by a stranger", func(ctx context.Context, s *system, r *rand.Rand, _ *record) error {
		_, _, err := s.admin.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: s.keys.Events(r.IntN(s.keys.Partitions)),
			Group:    eventlog.Group,
			Consumer: "stranger", MinIdle: 0, Start: "0", Count: 100}).Result()
		return err // NOGROUP: another fault deleted the stream
	}},
	{"scripts flushed", func(ctx context.Context, s *system, _ *rand.Rand, _ *record) error {
		return s.admin.ScriptFlush(ctx).Err()
	}},
	{"event stream deleted", func(ctx context.Context, s *system, r *rand.Rand, rec *record) error {
		// Nobody makes the group again until there are events in the new stream.
		for _, p := range s.work {
			p.Pause()
		}
		defer func() {
			pause.For(ctx, 300*time.Millisecond)
			for _, p := range s.work {
				p.Resume()
			}
		}()
		// Events that nobody has counted yet are lost, and this step reports them.
		list, err := redis.NewScript(`
			if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
			local from, waiting = '-', {}
			for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
				for i = 1, #group, 2 do
					if group[i] == 'last-delivered-id' then from = '(' .. group[i + 1] end
				end
				for _, p in ipairs(redis.call('XPENDING', KEYS[1], group[2], '-', '+', '100000')) do
					local e = redis.call('XRANGE', KEYS[1], p[1], p[1])[1]
					if e then waiting[#waiting + 1] = e end
				end
			end
			for _, e in ipairs(redis.call('XRANGE', KEYS[1], from, '+')) do waiting[#waiting + 1] = e end
			redis.call('DEL', KEYS[1])
			local out = {}
			for i, e in ipairs(waiting) do
				for f = 1, #e[2], 2 do
					if e[2][f] == 'key' then out[2 * i - 1] = e[2][f + 1] end
					if e[2][f] == 'count' then out[2 * i] = e[2][f + 1] end
				end
			end
			return out`).Run(ctx, s.admin, []string{s.keys.Events(r.IntN(s.keys.Partitions))}).StringSlice()
		if err != nil {
			return err
		}
		rec.mu.Lock()
		defer rec.mu.Unlock()
		for i := 0; i+1 < len(list); i += 2 {
			n, err := strconv.ParseInt(list[i+1], 10, 64)
			if err != nil {
				return err
			}
			note(rec.excused, api.Event{Key: list[i], Count: n})
		}
		return nil
	}},
	{"clock stepped", func(_ context.Context, s *system, r *rand.Rand, rec *record) error {
		if s.clock == nil {
			return errNoClock
		}
		// Ahead and behind, by less than what events are kept for.
		rec.ledger.stepped()
		s.clock.Set(time.Duration(r.IntN(61)-30) * time.Second)
		rec.ledger.stepped()
		return nil
	}},
	{"Redis killed and restarted", func(ctx context.Context, s *system, r *rand.Rand, _ *record) error {
		s.redis.Kill()
		pause.For(ctx, time.Duration(r.IntN(1000))*time.Millisecond)
		s.redis.Start()
		return nil
	}},
	{"Redis frozen", func(ctx context.Context, s *system, r *rand.Rand, _ *record) error {
		s.redis.Pause()
		pause.For(ctx, time.Duration(200+r.IntN(1500))*time.Millisecond)
		s.redis.Resume()
		return nil
	}},
	{"NATS away", func(ctx context.Context, s *system, r *rand.Rand, _ *record) error {
		s.nats.Stop()
		pause.For(ctx, s.natsAway(r))
		s.nats.Start()
		return nil
	}},
	{"out of memory", func(ctx context.Context, s *system, _ *rand.Rand, _ *record) error {
		if err := s.admin.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			return err
		}
		pause.For(ctx, time.Second)
		return s.admin.ConfigSet(context.WithoutCancel(ctx), "maxmemory", "0").Err()
	}},
	{"Redis busy", func(ctx context.Context, s *system, _ *rand.Rand, _ *record) error {
		if err := s.admin.ConfigSet(ctx, "busy-reply-threshold", "50").Err(); err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.admin.Eval(context.WithoutCancel(ctx), "while true do end", nil)
		}()
		pause.For(ctx, 700*time.Millisecond)
		err := s.admin.ScriptKill(context.WithoutCancel(ctx)).Err()
		<-ended
		// On a loaded machine 50 ms pass in any script, those of the verification too.
		return errors.Join(err, s.admin.ConfigSet(context.WithoutCancel(ctx), "busy-reply-threshold", "5000").Err())
	}},
}

// frozen freezes a worker for this long, and for up to so many ms more.
func frozen(least time.Duration, more int) func(context.Context, *system, *rand.Rand, *record) error {
	return func(ctx context.Context, s *system, r *rand.Rand, _ *record) error {
		p := s.work[r.IntN(len(s.work))]
		p.Pause()
		pause.For(ctx, least+time.Duration(r.IntN(more))*time.Millisecond)
		p.Resume()
		return nil
	}
}

var errNoClock = errors.New("the clock of Redis is the system's here")

func (s *system) proxies() []*streamtest.Proxy {
	return append([]*streamtest.Proxy{s.toAsk, s.toAdd}, s.toWork...)
}

func (s *system) anyProxy(r *rand.Rand) *streamtest.Proxy {
	list := s.proxies()
	return list[r.IntN(len(list))]
}

// natsAway is how long NATS is to be away: now and then a minute, if there is time.
func (s *system) natsAway(r *rand.Rand) time.Duration {
	if s.minutes >= 5 && r.IntN(3) == 0 {
		return time.Minute
	}
	return time.Duration(500+r.IntN(3000)) * time.Millisecond
}

// inflict strikes until ctx ends: each kind once in a random order, and again.
// It gives how many of each kind struck.
func inflict(ctx context.Context, s *system, seed uint64, rec *record) (struck map[string]int) {
	random := rand.New(rand.NewPCG(seed, 300))
	struck = map[string]int{}
	for ctx.Err() == nil {
		for _, i := range random.Perm(len(faults)) {
			if !pause.For(ctx, time.Duration(100+random.IntN(900))*time.Millisecond) {
				return struck
			}
			f := faults[i]
			switch err := f.do(ctx, s, random, rec); {
			case errors.Is(err, errNoClock):
				continue
			case err != nil && ctx.Err() == nil:
				s.t.Logf("%s: %v", f.name, err)
				continue
			}
			struck[f.name]++
		}
	}
	return struck
}

// rest ends all faults and sees that every part runs.
func (s *system) rest() {
	if s.clock != nil {
		s.clock.Set(0)
	}
	for _, p := range s.proxies() {
		p.Heal()
	}
	for i, p := range s.parts() {
		p.Resume()
		if !p.Running() {
			s.t.Errorf("process %d ended and no fault had stopped it (0 is serve)", i)
			p.Start()
		}
	}
}

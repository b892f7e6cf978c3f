package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// moved is a transition as the outbox and the published one both tell it.
type moved struct {
	state     string
	level     int64
	at, since int64
}

func (m moved) String() string {
	return fmt.Sprintf("%s %d since %d", m.state, m.level, m.since)
}

func movedOf(tr api.Transition) moved {
	return moved{string(tr.State), int64(tr.Level), tr.AtMs, tr.SinceMs}
}

// tap reads the outboxes beside the relay, so it knows what was to be published,
// whatever became of it. An entry that came and went while the tap was away is not
// there: what it has is true, and may not be all.
type tap struct {
	mu   sync.Mutex
	seen map[string][]moved // key → its alerts, in order
}

// startTap reads until the test ends.
func startTap(t testing.TB, s *system) *tap {
	t.Helper()
	tp := &tap{seen: map[string][]moved{}}
	for p := range s.keys.Partitions {
		c := streamtest.Connect(t, s.redis.Addr())
		testkit.Background(t, func(ctx context.Context) { tp.read(ctx, c, s.keys.Outbox(p)) })
	}
	return tp
}

func (tp *tap) read(ctx context.Context, c *redis.Client, outbox string) {
	for last := "0"; ctx.Err() == nil; {
		list, err := c.XRead(ctx, &redis.XReadArgs{Streams: []string{outbox, last}, Count: 10_000,
			Block: time.Second}).Result()
		if err != nil {
			pause.For(ctx, 10*time.Millisecond)
			continue
		}
		for _, m := range list[0].Messages {
			last = m.ID
			tp.note(m.Values)
		}
	}
}

func (tp *tap) note(values map[string]any) {
	var m moved
	key := fmt.Sprint(values["key"])
	m.state = fmt.Sprint(values["state"])
	if m.state != "raised" && m.state != "cleared" {
		return // throttle decisions: the guard is asked for those
	}
	for name, into := range map[string]*int64{"level": &m.level, "at": &m.at, "since": &m.since} {
		_, _ = fmt.Sscan(fmt.Sprint(values[name]), into)
	}
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.seen[key] = append(tp.seen[key], m)
}

// all gives what it has seen so far.
func (tp *tap) all() map[string][]moved {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	all := make(map[string][]moved, len(tp.seen))
	for key, list := range tp.seen {
		all[key] = slices.Clip(list)
	}
	return all
}

// verifyTap: what stood in an outbox was published, in that order.
func (v *verdict) verifyTap() {
	v.t.Helper()
	for key, seen := range v.tap.all() {
		published, from := v.published(key), 0
		for _, m := range seen {
			i := slices.Index(published[from:], m)
			if i < 0 {
				v.fail(key, "%s: %v stood in the outbox and was not published in its turn", key, m)
				break
			}
			from += i + 1
		}
	}
}

// crossedTwice tells how many keys with a late event crossed a limit twice at one millisecond.
func (tp *tap) crossedTwice() (n int) {
	for key, seen := range tp.all() {
		raised := map[int64]int{} // since → how often
		for _, m := range seen {
			if m.state == "raised" && strings.HasPrefix(key, "b:late:") {
				if raised[m.since]++; raised[m.since] == 2 {
					n++
				}
			}
		}
	}
	return n
}

func (s *system) jetStream() jetstream.JetStream {
	s.t.Helper()
	return streamtest.JetStream(s.t, s.nats.URL())
}

// startGuard subscribes to throttle decisions as a service does, for the whole run.
func startGuard(t testing.TB, s *system) *guard.Guard {
	t.Helper()
	nc := streamtest.ConnectNATS(t, s.nats.URL())
	g, err := guard.New(nc, guard.Config{})
	testkit.Must(t, err)
	testkit.Background(t, func(ctx context.Context) {
		if err := g.Run(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	return g
}

// verifyGuard: at the end the guard throttles the keys that are at their limit for
// the day, and no other. It gives how many these are.
func (v *verdict) verifyGuard(g *guard.Guard) (throttled int) {
	v.t.Helper()
	full := v.full()
	streamtest.Eventually(v.t, "the guard knows who is throttled", func() (bool, string) {
		wrong := ""
		for key := range v.logs {
			if g.Throttled(key) != full[key] {
				wrong = fmt.Sprintf("%s: throttled %v, its count says %v", key, g.Throttled(key), full[key])
			}
		}
		return wrong == "", wrong
	})
	return len(full)
}

// full returns the keys that are at their limit for the day.
func (v *verdict) full() map[string]bool {
	full := map[string]bool{}
	for key := range v.logs {
		if falls(key) {
			continue
		}
		if amounts, limit := v.levels(key); len(amounts) > 0 && amounts[len(amounts)-1] >= limit {
			full[key] = true
		}
	}
	return full
}

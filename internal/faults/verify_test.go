package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/guard"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// entry is one of a key's log.
type entry struct{ ms, count, total int64 }

// drained waits until every stored event is counted and every transition is
// published and none is due.
func (s *system) drained() {
	s.t.Helper()
	ctx := context.Background()
	streamtest.Eventually(s.t, "everything is counted and published", func() (bool, string) {
		backlogs, err := eventlog.Backlogs(ctx, s.admin, s.keys)
		if err != nil {
			return false, err.Error()
		}
		open, failed := s.open()
		var unread, pending, outbox int64
		var due []string
		for p, b := range backlogs {
			if b.Oldest > 0 {
				unread++
			}
			pending += b.Pending
			n, err := s.admin.XLen(ctx, s.keys.Outbox(p)).Result()
			outbox += n
			members, err2 := s.admin.ZRange(ctx, s.keys.Due(p), 0, -1).Result()
			due = append(due, slices.DeleteFunc(members, func(key string) bool { return !falls(key) })...)
			failed = errors.Join(failed, err, err2)
		}
		return failed == nil && unread+pending+outbox+int64(len(due)+len(open)) == 0,
			fmt.Sprintf("%d partitions with unread events, %d pending, %d in the outbox, short keys at a level: %q, "+
				"reservations that stand: %q, error %v", unread, pending, outbox, due, open, failed)
	})
}

// logs reads every log: key → its entries.
func (s *system) logs() map[string][]entry {
	s.t.Helper()
	ctx, logs := context.Background(), map[string][]entry{}
	for p := range s.keys.Partitions {
		form := s.keys.Counter(p, "log", "")
		node := redis.Cmdable(s.admin)
		if cluster, ok := s.admin.(*redis.ClusterClient); ok {
			master, err := cluster.MasterForKey(ctx, form)
			testkit.Must(s.t, err)
			node = master
		}
		names := node.Scan(ctx, 0, form+"*", 1000).Iterator()
		for names.Next(ctx) {
			key := strings.TrimPrefix(names.Val(), form)
			if byCallers(key) {
				continue
			}
			list, err := s.admin.XRange(ctx, names.Val(), "-", "+").Result()
			testkit.Must(s.t, err)
			var entries []entry
			for _, m := range list {
				ms, _, _ := strings.Cut(m.ID, "-")
				entries = append(entries, entry{number(s.t, ms), number(s.t, m.Values["count"]),
					number(s.t, m.Values["total"])})
			}
			logs[key] = entries
		}
		testkit.Must(s.t, names.Err())
	}
	return logs
}

func number(t testing.TB, text any) int64 {
	t.Helper()
	n, err := strconv.ParseInt(fmt.Sprint(text), 10, 64)
	testkit.Must(t, err)
	return n
}

// verifyEvents: acked ⊆ counted ⊆ acked ∪ unknown, each at most once, but for
// what was deleted before anybody read it; and totals that add up.
func (v *verdict) verifyEvents() {
	v.t.Helper()
	logs, rec := v.logs, v.rec
	keys := map[string]bool{}
	for _, m := range []map[string]map[int64]bool{rec.acked, rec.unknown} {
		for k := range m {
			keys[k] = true
		}
	}
	for key := range logs {
		if !keys[key] && limitOf(key) == 0 {
			v.fail(key, "%s was counted and never appended", key)
		}
	}
	for key := range keys {
		counted, total := map[int64]bool{}, int64(0)
		for _, e := range logs[key] {
			if counted[e.count] {
				v.fail(key, "event %d of %s was counted twice", e.count, key)
			}
			counted[e.count] = true
			if !rec.acked[key][e.count] && !rec.unknown[key][e.count] {
				v.fail(key, "event %d of %s was counted, and its append was refused", e.count, key)
			}
			if total += e.count; e.total != total {
				v.fail(key, "%s: the total at event %d is %d, a recount says %d", key, e.count, e.total, total)
			}
		}
		for n := range rec.acked[key] {
			if !counted[n] && !rec.excused[key][n] {
				v.fail(key, "event %d of %s was acknowledged and not counted", n, key)
			}
		}
	}
}

// verifyChecks: what was granted is charged, and no window holds more than its limit.
func (v *verdict) verifyChecks() {
	v.t.Helper()
	logs, rec := v.logs, v.rec
	for key := range rec.allowed {
		if logs[key] == nil {
			v.fail(key, "%s was granted and has no count", key)
		}
	}
	v.verifyOnce()
	for key, entries := range logs {
		if limitOf(key) == 0 {
			continue
		}
		for i, e := range entries {
			var held int64
			for j := i; j >= 0 && entries[j].ms > e.ms-checkPer.Milliseconds(); j-- {
				held += entries[j].count
			}
			if held > checkLimit && !slices.Contains([]string{"s", "to", "o"}, formOf(key)) {
				v.fail(key, "%s: the window that ends at %d holds %d, the limit is %d", key, e.ms, held, checkLimit)
			}
		}
		if charged := v.charged(key); charged < rec.allowed[key] || charged > rec.allowed[key]+rec.maybe[key] {
			v.fail(key, "%s: %d units were charged; %d were granted, %d more may have been", key, charged,
				rec.allowed[key], rec.maybe[key])
		}
	}
}

// alerts reads the stream of alerts: key → transitions in order.
func (s *system) alerts() map[string][]api.Transition {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js := s.jetStream()
	str, err := js.Stream(ctx, "SC_ALERTS")
	testkit.Must(s.t, err)
	byKey := map[string][]api.Transition{}
	if str.CachedInfo().State.Msgs == 0 {
		return byKey
	}
	c, err := str.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	testkit.Must(s.t, err)
	messages, err := c.Messages()
	testkit.Must(s.t, err)
	defer messages.Stop()
	for left := uint64(1); left > 0; {
		m, err := messages.Next(jetstream.NextMaxWait(10 * time.Second))
		testkit.Must(s.t, err)
		meta, err := m.Metadata()
		testkit.Must(s.t, err)
		left = meta.NumPending
		var tr api.Transition
		testkit.Must(s.t, json.Unmarshal(m.Data(), &tr))
		byKey[tr.Key] = append(byKey[tr.Key], tr)
	}
	return byKey
}

// verifyAlerts replays each key's log. A key of events only rises: each level
// once, at the entry that reached it. A key with a window of seconds
// rises and falls in turns, and has fallen at the end.
func (v *verdict) verifyAlerts() (levels int) {
	v.t.Helper()
	logs, alerts := v.logs, v.alerts
	for key, entries := range logs {
		var got []string
		for _, a := range alerts[key] {
			got = append(got, fmt.Sprintf("%s %d since %d", a.State, a.Level, a.SinceMs))
		}
		levels += len(got)
		if falls(key) {
			for i, a := range alerts[key] {
				if want := []api.State{"raised", "cleared"}[i%2]; a.State != want {
					v.fail(key, "%s: transition %d is %s, expected %s", key, i, got[i], want)
				}
			}
			if len(got)%2 == 1 {
				v.fail(key, "%s: the last of its transitions is %s", key, got[len(got)-1])
			}
			continue
		}
		var want []string
		amounts, limit := v.levels(key)
		for i, e := range entries {
			for _, pct := range []int64{50, 80, 100} {
				if threshold := limit * pct / 100; amounts[i] >= threshold && (i == 0 || amounts[i-1] < threshold) {
					want = append(want, fmt.Sprintf("raised %d since %d", pct, e.ms))
				}
			}
		}
		if !slices.Equal(got, want) {
			v.fail(key, "%s: alerts %v, a replay says %v", key, got, want)
		}
	}
	for key := range maps.Keys(alerts) {
		if logs[key] == nil && !byCallers(key) {
			v.fail(key, "%s has alerts and no count", key)
		}
	}
	return levels
}

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

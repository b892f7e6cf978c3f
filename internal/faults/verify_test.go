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
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
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

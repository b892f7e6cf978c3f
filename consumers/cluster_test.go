package consumers_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// clusterRate is how many events per second are appended: two slow cores can handle them beside all other tests.
const clusterRate = 3000

// clusterRules has rules for numbered keys that have one event each, hot keys that have many, keys that soon reach a
// limit, and keys that checks charge.
func clusterRules() []*windows.Rule {
	much := []windows.Window{{Limit: 1_000_000, Per: time.Hour}}
	return []*windows.Rule{
		{Name: "numbered", Match: "event:*", Windows: much},
		{Name: "hot", Match: "hot:*", Windows: much},
		{Name: "limited", Match: "limited:*", Windows: []windows.Window{{Limit: 10, Per: time.Hour}},
			Alerts: []int{50}, Hold: time.Second},
		{Name: "asked", Match: "asked:*", Windows: much},
	}
}

// load appends events and sends checks until it is stopped, and records the outcome of each.
type load struct {
	w    *world
	next atomic.Int64 // numbers the events

	mu              sync.Mutex
	acked, perhaps  map[string]int64 // key → units of events
	asked, unsure   map[string]int64 // key → units of checks
	failed, refused int              // appended events that are unknown, and that are certainly not stored
	total           int64            // of acked

	stop func()
}

func startLoad(w *world) *load {
	l := &load{w: w, acked: map[string]int64{}, perhaps: map[string]int64{}, asked: map[string]int64{},
		unsure: map[string]int64{}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	const producers, batch = 4, 40
	for range producers {
		all.Go(func() {
			for pause.For(ctx, time.Second*producers*batch/clusterRate) {
				l.append(batch)
			}
		})
	}
	all.Go(func() {
		for n := 0; pause.For(ctx, 5*time.Millisecond); n++ {
			l.check(fmt.Sprintf("asked:%d", n%32))
		}
	})
	l.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	w.t.Cleanup(l.stop)
	return l
}

func (l *load) append(n int) {
	events := make([]api.Event, 0, n)
	for range n / 2 {
		i := l.next.Add(1)
		second := fmt.Sprintf("hot:%d", i%30)
		if i%8 == 0 {
			second = fmt.Sprintf("limited:%d", i/8%8)
		}
		events = append(events, api.Event{Key: fmt.Sprintf("event:%d", i), Count: 1},
			api.Event{Key: second, Count: 1 + i%3})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out := l.w.log.Append(ctx, events)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range events {
		l.acked[e.Key] += e.Count
		l.total += e.Count
	}
	for _, e := range slices.Concat(out.Refused, out.Unknown) {
		l.acked[e.Key] -= e.Count
		l.total -= e.Count
	}
	for _, e := range out.Unknown {
		l.perhaps[e.Key] += e.Count
	}
	l.failed += len(out.Unknown)
	l.refused += len(out.Refused)
}

func (l *load) check(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, err := l.w.counter.Check(ctx, []counters.Request{{Plan: l.w.rules.Match(key), Key: key, Cost: 1}})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.asked[key]++
	case !redis.IsTryAgainError(err):
		l.unsure[key]++
	}
}

// more waits until n more units have been appended and acknowledged.
func (l *load) more(n int64) {
	l.w.t.Helper()
	from := int64(-1)
	l.w.eventually(fmt.Sprintf("%d more units are appended", n), func() (bool, string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if from < 0 {
			from = l.total
		}
		return l.total >= from+n, fmt.Sprint(l.total - from)
	})
}

// stored returns what is in the event streams: key → units. A numbered key has one event, so its units show how often
// that event is stored.
func (w *world) stored() map[string]int64 {
	w.t.Helper()
	got := map[string]int64{}
	for p := range w.keys.Partitions {
		list, err := w.redis.XRange(context.Background(), w.keys.Events(p), "-", "+").Result()
		testkit.Must(w.t, err)
		for _, m := range list {
			e, err := entry.Message{ID: m.ID, Values: m.Values}.Decode()
			testkit.Must(w.t, err)
			got[e.Key] += e.Count
		}
	}
	return got
}

// counted returns the counts of the keys of these records.
func (w *world) counted(records ...map[string]int64) map[string]int64 {
	w.t.Helper()
	var mu sync.Mutex
	var all errgroup.Group
	all.SetLimit(8)
	got := map[string]int64{}
	for _, r := range records {
		for key := range r {
			all.Go(func() error {
				st, err := w.counter.Peek(context.Background(), w.rules.Match(key), key)
				if err != nil {
					return fmt.Errorf("peek at %s: %w", key, err)
				}
				mu.Lock()
				defer mu.Unlock()
				got[key] = st.Windows[0].Used
				return nil
			})
		}
	}
	testkit.Must(w.t, all.Wait())
	return got
}

// settled waits until every stored event is read and acknowledged, and every transition is published.
func (w *world) settled() {
	w.t.Helper()
	w.eventually("all is read, acknowledged and published", func() (bool, string) {
		backlogs, err := eventlog.Backlogs(context.Background(), w.redis, w.keys)
		done := err == nil && len(backlogs) == w.keys.Partitions
		for p, b := range backlogs {
			done = done && !b.Unread && b.Pending == 0 &&
				w.redis.XLen(context.Background(), w.keys.Outbox(p)).Val() == 0
		}
		return done, fmt.Sprint(backlogs, err)
	})
}

// audit compares the counters with the streams, and the streams with the records of the producers. It returns how
// many acknowledged units are lost.
func (l *load) audit() (lost int64) {
	t, w := l.w.t, l.w
	t.Helper()
	l.stop()
	w.settled()
	stored := w.stored()
	counted, wrong := w.counted(l.acked, l.perhaps, stored), 0
	fail := func(format string, args ...any) {
		if wrong++; wrong < 10 {
			t.Errorf(format, args...)
		}
	}
	for key, n := range counted {
		// Every stored event is counted exactly once: a count and its acknowledgement are written together.
		if n != stored[key] {
			fail("%s: %d units are counted, %d stand in the stream", key, n, stored[key])
		}
		// No event is stored twice, and none that nobody sent.
		if stored[key] > l.acked[key]+l.perhaps[key] {
			fail("%s: %d units in the stream, of %d acknowledged and %d perhaps", key, stored[key], l.acked[key],
				l.perhaps[key])
		}
		lost += max(0, l.acked[key]-stored[key])
	}
	throttled := map[string]bool{}
	for k, err := range w.counter.Throttled(context.Background()) {
		if err != nil {
			t.Error(err)
		}
		throttled[k.Key] = true
	}
	for key, n := range counted {
		if limit := w.rules.Match(key).Live.Windows[0].Limit; throttled[key] != (n >= limit) {
			fail("%s has used %d of %d, throttled: %v", key, n, limit, throttled[key])
		}
	}
	if wrong > 0 {
		t.Errorf("%d keys are wrong", wrong)
	}
	t.Logf("%d events acknowledged, %d unknown, %d refused; %d units of %d acknowledged are lost; %d keys "+
		"throttled, %d transitions published",
		l.next.Load()*2-int64(l.failed+l.refused), l.failed, l.refused, lost, l.total, len(throttled),
		int(w.sample("transitions_total")))
	if len(throttled) == 0 {
		t.Error("no key was throttled: the outboxes were not tested")
	}
	return lost
}

// auditChecks compares the answers of checks with what they charged.
func (l *load) auditChecks() (lost int64) {
	t := l.w.t
	t.Helper()
	for key, used := range l.w.counted(l.asked) {
		if used > l.asked[key]+l.unsure[key] {
			t.Errorf("%s: %d charged, of %d checks admitted and %d perhaps", key, used, l.asked[key], l.unsure[key])
		}
		lost += max(0, l.asked[key]-used)
	}
	return lost
}

// TestCluster does to a Cluster under load what operators do to Clusters, and lets a master die.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := streamtest.Cluster(t)
	t.Run("slots move", func(t *testing.T) { slotsMoveUnderLoad(t, c) })
	t.Run("a master dies", func(t *testing.T) { aMasterDiesUnderLoad(t, c) })
}

// Slots of busy partitions move to other masters while events are appended, workers fold and checks are sent: nothing
// is lost and nothing is counted twice.
func slotsMoveUnderLoad(t *testing.T, c *streamtest.RedisCluster) {
	w := newWorldOf(t, c.URL(), 16, clusterRules()...)
	w.start(&recorder{}, nil)
	w.start(&recorder{}, nil)
	began := time.Now()
	l := startLoad(w)
	l.more(1000)
	for p := range 4 {
		slot := c.Slot(w.keys.Events(p))
		steps := 0
		c.Migrate(slot, c.OtherMaster(slot), func(int) {
			if steps++; steps%20 == 1 { // one of these steps is before the first key
				l.more(200)
			}
			if p == 0 && steps == 2 { // the keys of the slot are on two nodes
				w.eventually("a fold meets the moving slot for longer than its client waits", func() (bool, string) {
					n := w.sample("fold_failures_total")
					return n > 0, fmt.Sprint(n)
				})
			}
		})
	}
	l.more(1000)
	l.stop()
	took := time.Since(began)
	if lost := l.audit(); lost != 0 {
		t.Errorf("%d acknowledged units are lost", lost)
	}
	if lost := l.auditChecks(); lost != 0 {
		t.Errorf("%d units of admitted checks are lost", lost)
	}
	t.Logf("%.0f events/s, 4 of 16 slots moved, %v folds tried again, %v events claimed",
		float64(l.next.Load()*2)/took.Seconds(), w.sample("fold_failures_total"), w.sample("claims_total"))
}

// A master dies with acknowledged writes that no replica has. These writes are lost as a whole: counts, acks and
// outbox are consistent at the new master.
func aMasterDiesUnderLoad(t *testing.T, c *streamtest.RedisCluster) {
	w := newWorldOf(t, c.URL(), 16, clusterRules()...)
	w.start(&recorder{}, nil)
	w.start(&recorder{}, nil)
	l := startLoad(w)
	l.more(1500)
	slot := c.Slot(w.keys.Events(0))
	resume := c.CutReplicaOf(slot)
	// Another prefix starts now: the new master will have neither its streams nor its groups, but its workers and
	// producers go on.
	young := newWorldOf(t, c.URL(), 16, clusterRules()...)
	young.start(&recorder{}, nil)
	yl := startLoad(young)
	yl.more(500)
	l.more(1000) // a third of these at the master that is killed
	old := c.KillMasterOf(slot)
	killed := time.Now()
	resume()
	c.AwaitNewMaster(slot, old)
	over := time.Since(killed)
	l.more(1000)
	yl.more(1000)
	l.stop()
	yl.stop()
	lost, lostChecks := l.audit(), l.auditChecks()
	t.Logf("the replica served after %v; lost: %d units of events, %d of checks", over.Round(time.Millisecond), lost,
		lostChecks)
	if lost == 0 {
		t.Error("nothing was lost: the replica was not cut off, so nothing was tested")
	}
	t.Logf("lost of the young prefix: %d units of events, %d of checks", yl.audit(), yl.auditChecks())
	c.Revive() // as replicas, which bring no data back
	if again := l.audit(); again != lost {
		t.Errorf("after the old master came back %d units are lost, before %d", again, lost)
	}
}

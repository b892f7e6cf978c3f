package consumers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// Decisions that somebody has overwritten or deleted in NATS, alone or with their stream, are published again, and no
// others are. A subscriber that starts after that finds all throttled keys.
func TestOverwrittenDecisionsAreRestated(t *testing.T) {
	t.Parallel()
	hour := []windows.Window{{Limit: 10, Per: time.Hour}}
	w := newWorld(t, &windows.Rule{Name: "api", Match: "user:*", Windows: hour},
		&windows.Rule{Name: "watched", Match: "user:*", Windows: hour, Shadow: true})
	publisher, js := w.publisher(t)
	var log testkit.Log
	set := w.counter.NewOverrides(nil)
	throttle, _ := alerts.StreamNames(w.keys.Prefix)
	stream, err := js.Stream(t.Context(), throttle)
	testkit.Must(t, err)
	subject := func(rule, key string) string { return api.ThrottleSubject(w.keys.Prefix, rule, key) }
	published := func(rule, key string) (d api.Transition) {
		if m, err := stream.GetLastMsgForSubject(context.Background(), subject(rule, key)); err == nil {
			_ = json.Unmarshal(m.Data, &d) // a message that is not a decision has no state
		}
		return d
	}
	w.start(publisher, func(c *consumers.Config) {
		c.Decisions, c.CompareEvery, c.Rules = publisher, 120*time.Millisecond, windows.Under(set, c.Rules)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	keys := []string{"user:overwritten", "user:deleted", "user:released", "user:shadow", "user:newer",
		"user:impossible", "user:watched", "user:expired", "user:other", "user:well"}
	for _, key := range keys {
		w.append(api.Event{Key: key, Count: 10})
	}
	for _, rule := range []string{"api", "watched"} {
		for _, key := range keys {
			w.eventually(fmt.Sprintf("%s is throttled by %s", key, rule), func() (bool, string) {
				return published(rule, key).State == api.StateThrottled, "it is not"
			})
		}
	}
	_, err = set.Set(t.Context(), w.rules.ValidateOverride, api.Override{Key: "blocked", Block: true}, 0)
	testkit.Must(t, err)
	w.eventually("a key is blocked", func() (bool, string) {
		return published("override", "blocked").State == api.StateThrottled, "it is not"
	})

	answer := []byte(`{"type":"io.nats.jetstream.api.v1.account_info_response"}`)
	nc := js.Conn()
	testkit.Must(t, nc.Publish(subject("api", "user:overwritten"), answer))
	testkit.Must(t, nc.Publish(subject("watched", "user:shadow"), []byte("x")))
	soon, never := time.Now().Add(time.Hour).UnixMilli(), time.Now().Add(25*time.Hour).UnixMilli()
	change := func(rule, key string, change func(d *api.Transition)) {
		forged := published(rule, key)
		change(&forged)
		body, err := json.Marshal(forged)
		testkit.Must(t, err)
		testkit.Must(t, nc.Publish(subject(rule, key), body))
	}
	forge := func(rule, key string, state api.State, version int64) {
		change(rule, key, func(d *api.Transition) { d.State, d.Version = state, version })
	}
	change("api", "user:watched", func(d *api.Transition) { d.Shadow = true })
	change("api", "user:expired", func(d *api.Transition) { d.ExpiresMs = time.Now().UnixMilli() })
	change("api", "user:other", func(d *api.Transition) { d.Level = 7 }) // subscribers ignore it
	forge("api", "user:released", api.StateReleased, soon)
	forge("api", "user:newer", api.StateThrottled, soon)
	forge("override", "blocked", api.StateReleased, soon)
	forge("api", "user:impossible", api.StateReleased, never)
	testkit.Must(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject("api", "user:deleted"))))
	well := published("api", "user:well")
	for _, x := range [][2]string{{"api", "user:overwritten"}, {"watched", "user:shadow"}, {"api", "user:released"},
		{"api", "user:deleted"}, {"api", "user:newer"}, {"override", "blocked"}, {"api", "user:impossible"},
		{"api", "user:watched"}, {"api", "user:expired"}, {"api", "user:other"}} {
		w.eventually(fmt.Sprintf("%s is throttled again by %s", x[1], x[0]), func() (bool, string) {
			d := published(x[0], x[1])
			return d.State == api.StateThrottled && d.Renewal && d.Validate() == nil && d.Version < never &&
					!(d.Shadow && x[0] == "api") && d.ExpiresMs > d.UntilMs &&
					(d.Version > soon || x[1] != "user:released" && x[1] != "user:newer" && x[1] != "blocked"),
				fmt.Sprintf("%+v", d)
		})
	}
	w.eventually("the log names the decision with an impossible version", func() (bool, string) {
		return strings.Contains(log.String(), subject("api", "user:impossible")), log.String()
	})
	// The metric is increased when Redis has answered, which may be after NATS has the message.
	w.shows("decisions_restated_total", 10)
	if now := published("api", "user:well"); now.Version != well.Version {
		t.Errorf("a decision that stood was published again: %+v", now)
	}

	// Both streams are deleted, and there is no transition that would create them again.
	_, alerted := alerts.StreamNames(w.keys.Prefix)
	testkit.Must(t, js.DeleteStream(t.Context(), throttle))
	testkit.Must(t, js.DeleteStream(t.Context(), alerted))
	for _, key := range keys {
		w.eventually(key+" is in the new stream", func() (bool, string) {
			return published("api", key).State == api.StateThrottled, "it does not"
		})
	}
	_, err = js.Stream(t.Context(), alerted)
	testkit.Must(t, err)
}

// Redis loses the records of decisions after they were published, as in a failover. Subscribers are told that the keys
// are released. Decisions that Redis still has stand.
func TestDecisionsThatRedisLostAreReleased(t *testing.T) {
	t.Parallel()
	ctx, hour := context.Background(), []windows.Window{{Limit: 10, Per: time.Hour}}
	w := newWorld(t, &windows.Rule{Name: "api", Match: "*", Windows: hour, Alerts: []int{50}},
		&windows.Rule{Name: "watched", Match: "*", Windows: hour, Shadow: true})
	publisher, js := w.publisher(t)
	published := func(rule, key string) api.Transition {
		d, err := publisher.LastDecision(ctx, api.ThrottleSubject(w.keys.Prefix, rule, key))
		testkit.Must(t, err)
		if d == nil {
			return api.Transition{}
		}
		return *d
	}
	becomes := func(rule, key string, state api.State) {
		t.Helper()
		w.eventually(fmt.Sprintf("%s is %s by %s", key, state, rule), func() (bool, string) {
			d := published(rule, key)
			return d.State == state, fmt.Sprintf("%+v", d)
		})
	}
	half := w.keyIn(0, "half") // Redis knows a lower level of it
	w.append(api.Event{Key: half, Count: 5})
	set := w.counter.NewOverrides(nil)
	w.start(publisher, func(c *consumers.Config) {
		c.Rules = windows.Under(set, c.Rules)
		c.Decisions, c.CompareEvery = publisher, 120*time.Millisecond
	})
	_, err := set.Set(ctx, w.rules.ValidateOverride, api.Override{Key: w.keyIn(0, "blocked"), Block: true}, 0)
	testkit.Must(t, err)
	long := keyOf(w.keys, 0, strings.Repeat("k", 300)) // its subject has a hash
	lost := [][2]string{{"api", w.keyIn(0, "lost")}, {"watched", w.keyIn(0, "lost")}, {"api", long},
		{"watched", long}, {"override", w.keyIn(0, "blocked")}}
	var before string
	w.eventually("half of the limit is used", func() (bool, string) {
		before = w.redis.HGet(ctx, w.keys.Levels(0), half).Val()
		return before != "", before
	})
	lost = append(lost, [2]string{"api", half}, [2]string{"watched", half})
	for _, x := range append(lost, [2]string{"api", w.keyIn(1, "well")}) {
		if x[0] == "api" {
			w.append(api.Event{Key: x[1], Count: 10})
		}
		becomes(x[0], x[1], api.StateThrottled)
	}
	well := published("api", w.keyIn(1, "well"))
	names := []string{w.keys.Levels(0), w.keys.Due(0), w.keys.Overrides(0)}
	for _, key := range []string{lost[0][1], long, half} {
		for _, form := range lua.Forms() {
			names = append(names, w.keys.Counter(0, form, key))
		}
	}
	testkit.Must(t, w.redis.Del(ctx, names...).Err())
	testkit.Must(t, w.redis.HSet(ctx, w.keys.Levels(0), half, before).Err())
	forged, far := well, int64(253402300799999) // what no record can have
	forged.Key, forged.Version, forged.Limit = w.keyIn(0, "forged"), 1<<53, 1<<53
	forged.SinceMs, forged.UntilMs, forged.WindowMs = far, far, far
	body, err := json.Marshal(forged)
	testkit.Must(t, err)
	testkit.Must(t, js.Conn().Publish(api.ThrottleSubject(w.keys.Prefix, "api", forged.Key), body))
	lost = append(lost, [2]string{"api", forged.Key})
	for _, x := range lost {
		becomes(x[0], x[1], api.StateReleased)
	}
	// A sweep that looks at the key ends the lower level, because its count is lost.
	if now := w.redis.HGet(ctx, w.keys.Levels(0), half).Val(); now != before && now != "" {
		t.Errorf("the record of the lower level is %q, was %q", now, before)
	}
	w.shows("decisions_restated_total", float64(len(lost)))
	if now := published("api", w.keyIn(1, "well")); now.Version != well.Version {
		t.Errorf("a decision that Redis has was published again: %+v", now)
	}
}

// missing is a stream without decisions. It records which keys the present round has read.
type missing struct {
	mu     sync.Mutex
	read   []string
	rounds int // that have ended, and have read a key
}

func (m *missing) Ensure(context.Context) error { // a round begins
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rounds += min(1, len(m.read))
	m.read = nil
	return nil
}

func (m *missing) Subjects(context.Context) ([]string, error) { return nil, nil }

func (m *missing) LastDecision(_ context.Context, subject string) (*api.Transition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read = append(m.read, subject)
	return nil, nil
}

// While NATS does not take a change, the decision there differs from that in Redis. That is no loss.
func TestChangesThatWaitInTheOutboxAreNotRestated(t *testing.T) {
	t.Parallel()
	w, r, found := newWorld(t), &recorder{down: true}, &missing{}
	w.start(r, func(c *consumers.Config) {
		stopAtOnce(c)
		c.Decisions, c.CompareEvery = found, 24*time.Millisecond
	})
	w.append(api.Event{Key: "user:1", Count: 10})
	w.eventually("several rounds compare the key", func() (bool, string) {
		found.mu.Lock()
		defer found.mu.Unlock()
		return found.rounds > 4, fmt.Sprint(found.rounds)
	})
	if n := w.sample("decisions_restated_total"); n != 0 {
		t.Errorf("%v decisions that wait in the outbox are published again", n)
	}
	r.set(false)
	w.eventually("the lost decision is published again", func() (bool, string) {
		return w.sample("decisions_restated_total") > 0, "it is not"
	})
}

// forger is a stream without decisions, but for one of a version that no program of ours publishes.
type forger struct {
	*missing
	subject string
}

func (f forger) LastDecision(ctx context.Context, subject string) (*api.Transition, error) {
	if subject == f.subject {
		return &api.Transition{State: api.StateReleased, Version: 1 << 52}, nil
	}
	return f.missing.LastDecision(ctx, subject)
}

// The comparer waits once before it looks again, not once per partition. One forged decision does not stop the repair
// of those that are compared after it.
func TestForgedDecisionDoesNotStopTheRepairOfOthers(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), &recorder{}
	forged := w.keyIn(0, "a") // the first to be compared
	found := forger{&missing{}, api.ThrottleSubject(w.keys.Prefix, "api", forged)}
	w.start(r, func(c *consumers.Config) { c.Decisions, c.CompareEvery = found, 120*time.Millisecond })
	w.append(api.Event{Key: forged, Count: 10})
	const keys = 249
	for i := range keys { // most of them after the forged one, in its partition
		w.append(api.Event{Key: w.keyIn(max(0, i-keys+4), fmt.Sprintf("k%03d", i)), Count: 10})
	}
	w.eventually("a round reads each key once before it reads one again", func() (bool, string) {
		found.mu.Lock()
		defer found.mu.Unlock()
		once := map[string]bool{}
		for _, subject := range found.read[:min(keys, len(found.read))] {
			once[subject] = true
		}
		return len(once) == keys, fmt.Sprint(len(once))
	})
	w.eventually("all are published again", func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		renewed := map[string]bool{}
		for _, d := range r.all {
			if d.Renewal && d.State == api.StateThrottled {
				renewed[d.Key] = true
			}
		}
		return len(renewed) == keys+1, fmt.Sprint(len(renewed), " are")
	})
}

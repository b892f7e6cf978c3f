package consumers_test

import (
	"context"
	"encoding/json"
	"fmt"
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
	each(t, func(t *testing.T, url string) {
		hour := []windows.Window{{Limit: 10, Per: time.Hour}}
		w := newWorld(t, url, &windows.Rule{Name: "api", Match: "user:*", Windows: hour},
			&windows.Rule{Name: "watched", Match: "user:*", Windows: hour, Shadow: true})
		publisher, js := w.publisher(t)
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
			c.Decisions, c.CompareEvery = publisher, 120*time.Millisecond
		})
		keys := []string{"user:overwritten", "user:deleted", "user:released", "user:shadow", "user:well"}
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

		before := published("api", "user:released")
		answer := []byte(`{"type":"io.nats.jetstream.api.v1.account_info_response"}`)
		nc := js.Conn()
		testkit.Must(t, nc.Publish(subject("api", "user:overwritten"), answer))
		testkit.Must(t, nc.Publish(subject("watched", "user:shadow"), []byte("x")))
		forged := before
		forged.State, forged.Version = api.StateReleased, before.Version+1
		body, err := json.Marshal(forged)
		testkit.Must(t, err)
		testkit.Must(t, nc.Publish(subject("api", "user:released"), body))
		testkit.Must(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject("api", "user:deleted"))))
		well := published("api", "user:well")
		for _, x := range [][2]string{{"api", "user:overwritten"}, {"watched", "user:shadow"}, {"api", "user:released"},
			{"api", "user:deleted"}} {
			w.eventually(fmt.Sprintf("%s is throttled again by %s", x[1], x[0]), func() (bool, string) {
				d := published(x[0], x[1])
				return d.State == api.StateThrottled && d.Renewal && d.Validate() == nil, fmt.Sprintf("%+v", d)
			})
		}
		// The metric is increased when Redis has answered, which may be after NATS has the message.
		w.shows("decisions_restated_total", 4)
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
	})
}

// Redis loses the records of decisions after they were published, as in a failover. Subscribers are told that the keys
// are released. Decisions that Redis still has stand.
func TestDecisionsThatRedisLostAreReleased(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		ctx, hour := context.Background(), []windows.Window{{Limit: 10, Per: time.Hour}}
		w := newWorld(t, url, &windows.Rule{Name: "api", Match: "*", Windows: hour, Alerts: []int{50}},
			&windows.Rule{Name: "watched", Match: "*", Windows: hour, Shadow: true})
		publisher, _ := w.publisher(t)
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
		for _, x := range lost {
			becomes(x[0], x[1], api.StateReleased)
		}
		if now := w.redis.HGet(ctx, w.keys.Levels(0), half).Val(); now != before {
			t.Errorf("the record of the lower level is %q, was %q", now, before)
		}
		w.shows("decisions_restated_total", float64(len(lost)))
		if now := published("api", w.keyIn(1, "well")); now.Version != well.Version {
			t.Errorf("a decision that Redis has was published again: %+v", now)
		}
	})
}

// missing is a stream without decisions. It records which keys the present round has read.
type missing struct {
	mu   sync.Mutex
	read []string
}

func (m *missing) Ensure(context.Context) error { // a round begins
	m.mu.Lock()
	defer m.mu.Unlock()
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

// The comparer waits once before it looks again, not once per partition.
func TestPartitionsAreComparedTogether(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		w, found := newWorld(t, url), &missing{}
		w.start(&recorder{}, func(c *consumers.Config) { c.Decisions, c.CompareEvery = found, 120*time.Millisecond })
		const keys = 40
		for i := range keys {
			w.append(api.Event{Key: fmt.Sprint("user:", i), Count: 10})
		}
		w.eventually("a round reads each key once before it reads one again", func() (bool, string) {
			found.mu.Lock()
			defer found.mu.Unlock()
			once := map[string]bool{}
			for _, subject := range found.read[:min(keys, len(found.read))] {
				once[subject] = true
			}
			return len(once) == keys, fmt.Sprint(found.read)
		})
		w.eventually("all are published again", func() (bool, string) {
			n := w.sample("decisions_restated_total")
			return n >= keys, fmt.Sprintf("%v are", n)
		})
	})
}

package consumers

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
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// decisions is what subscribers find in NATS, in a story.
type decisions struct {
	*alerts.Publisher
	js       jetstream.JetStream
	throttle jetstream.Stream
	forged   map[string]int64 // subject → the version that somebody has forged
	first    map[string]int64 // subject → the version at the first step `same`
}

func (y *story) decisions() *decisions {
	y.t.Helper()
	publisher, js := y.publisher()
	name, _ := alerts.StreamNames(y.keys.Prefix)
	throttle, err := js.Stream(y.t.Context(), name)
	testkit.Must(y.t, err)
	return &decisions{publisher, js, throttle, map[string]int64{}, map[string]int64{}}
}

func (y *story) subject(rule, key string) string {
	return api.ThrottleSubject(y.keys.Prefix, rule, key)
}

// found returns the last message of a rule and key as subscribers find it. A message that is not a decision has no
// state.
func (y *story) found(rule, key string) (d api.Transition) {
	if m, err := y.nats.throttle.GetLastMsgForSubject(y.t.Context(), y.subject(rule, key)); err == nil {
		_ = json.Unmarshal(m.Data, &d)
	}
	return d
}

// forge publishes the last decision of a rule for a key, with other fields, on the subject of another key.
func (y *story) forge(rule, from, to, fields string) {
	y.t.Helper()
	in := func(after time.Duration) string { return fmt.Sprint(time.Now().Add(after).UnixMilli()) }
	times := strings.NewReplacer("NOW", in(0), "SOON", in(time.Hour), "NEVER", in(25*time.Hour))
	d := y.found(rule, from)
	testkit.Must(y.t, json.Unmarshal([]byte(times.Replace(fields)), &d))
	d.Key = to
	if strings.Contains(fields, "SOON") {
		y.nats.forged[y.subject(rule, to)] = d.Version
	}
	text, err := json.Marshal(d)
	testkit.Must(y.t, err)
	testkit.Must(y.t, y.nats.js.Conn().Publish(y.subject(rule, to), text))
}

// awaitDecision waits until subscribers find a decision in a state. If it is wanted again, it must be published again
// in such a way that subscribers act on it.
func (y *story) awaitDecision(rule, key, state string, again bool) {
	y.t.Helper()
	y.eventually(fmt.Sprintf("%s is %s by %s", key, state, rule), func() (bool, string) {
		d, most := y.found(rule, key), time.Now().Add(25*time.Hour).UnixMilli()
		good := d.Renewal && d.Validate() == nil && d.Version < most && d.Shadow == (rule == "watched") &&
			d.ExpiresMs > d.UntilMs && d.Version > y.nats.forged[y.subject(rule, key)]
		return string(d.State) == state && (good || !again), fmt.Sprintf("%+v", d)
	})
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
	w.start(r, func(c *Config) {
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
	w.start(r, func(c *Config) { c.Decisions, c.CompareEvery = found, 120*time.Millisecond })
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

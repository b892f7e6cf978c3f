package consumers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/windows"
)

// attempts records how many of the transitions that it receives may have been sent before: "resent of how many". Its
// second Publish fails.
type attempts struct {
	mu   sync.Mutex
	seen []string
}

func (a *attempts) Publish(_ context.Context, list []api.Transition, resent int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, fmt.Sprintf("%d of %d", resent, len(list)))
	if len(a.seen) == 2 {
		return errors.New("no answer")
	}
	return nil
}

// When a relay takes over an outbox, the relay before it may have sent the waiting entries. Later only the entries
// that this relay has tried may have been sent. All others are sent for the first time.
func TestTheRelayKnowsWhatMayHaveBeenSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.keys.Partition("user:1")
	stop := w.start(&recorder{down: true}, stopAtOnce)
	w.append(api.Event{Key: "user:1", Count: 5})
	w.waiting(p, 1)
	stop()
	got := &attempts{}
	w.start(got, func(c *consumers.Config) { c.LockTTL = time.Minute }) // a new lock would begin a new count
	w.waiting(p, 0)
	w.append(api.Event{Key: "user:1", Count: 5})
	want := []string{"1 of 1", "0 of 2", "2 of 2"}
	w.eventually("what followed is published", func() (bool, string) {
		got.mu.Lock()
		defer got.mu.Unlock()
		return slices.Equal(got.seen, want), fmt.Sprint(got.seen)
	})
}

// The decision, and the alert of the same crossing, contain the penalty that begins with them and the newest values; an
// earlier alert contains no penalty.
func TestDecisionsTellOfThePenaltyAndTheValues(t *testing.T) {
	rule := &windows.Rule{Name: "api", Match: "*", Alerts: []int{50},
		Penalty: []time.Duration{time.Hour, 2 * time.Hour},
		Windows: []windows.Window{{Limit: 2, Per: time.Minute, Distinct: "user", PublishValues: 5}}}
	t.Parallel()
	w, got := newWorld(t, rule), &recorder{}
	w.start(got, nil)
	w.append(api.Event{Key: "user:1", Count: 1, Values: map[string]string{"user": "alice"}})
	w.told(got, "user:1", "raised 50")
	w.append(api.Event{Key: "user:1", Count: 1, Values: map[string]string{"user": "bob"}})
	w.told(got, "user:1", toTheTop)
	got.mu.Lock()
	defer got.mu.Unlock()
	for _, one := range got.all {
		if (one.Penalty != nil) != (one.Level == 100) {
			t.Errorf("%s %d%% tells of the penalty %+v", one.State, one.Level, one.Penalty)
		}
		if p := one.Penalty; p != nil && (p.Step != 1 || p.Of != 2 || p.UntilMs != one.UntilMs) {
			t.Errorf("%s %d%% until %d tells of the penalty %+v", one.State, one.Level, one.UntilMs, p)
		}
		if list := fmt.Sprint(one.Values); one.State == api.StateThrottled && list != "&map[user:[bob alice]]" {
			t.Errorf("the decision has the values %s", list)
		}
	}
}

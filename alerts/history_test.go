package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The alerts of one key among many come page by page, the newest first, each once: both if all of them are read, and
// if only the newest are.
func TestHistoryPages(t *testing.T) {
	w := newWorld(t)
	history, err := alerts.NewHistory(w.js.Conn(), w.prefix)
	testkit.Must(t, err)
	if list, _, err := history.Alerts(t.Context(), "user.1", "", 5); err != nil || len(list) != 0 {
		t.Fatalf("before there is a stream: %+v, %v", list, err)
	}
	w.ensure(t)
	for _, n := range []int64{7, 1200} { // the second number is more than are read as a whole
		key := fmt.Sprintf("user.%d", n)
		var all []api.Transition
		for i := range n {
			for _, key := range []string{key, "other"} {
				all = append(all, api.Transition{Rule: "api", Key: key, State: api.StateRaised, Level: 80, Limit: 10,
					WindowMs: 1000, Used: i, Version: i + 1, AtMs: 1000 + i, ExpiresMs: 2000 + i})
			}
		}
		testkit.Must(t, w.publisher.Publish(t.Context(), all, 0))
		for before, want := "", n-1; want >= 0; {
			list, places, err := history.Alerts(t.Context(), key, before, 500)
			testkit.Must(t, err)
			if len(list) == 0 || len(list) > 500 {
				t.Fatalf("%s: a page has %d of %d that are left", key, len(list), want+1)
			}
			for _, one := range list {
				if one.Used != want || one.Key != key {
					t.Fatalf("%s: %+v, want number %d", key, one, want)
				}
				want--
			}
			before = places[len(places)-1]
		}
	}
	for _, bad := range []string{"x", "1", "1-", "-1", strings.Repeat("9", 30) + "-1"} {
		if _, _, err := history.Alerts(t.Context(), "user.1", bad, 5); !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, _, err := history.Alerts(t.Context(), "user.1", "", -1); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("-1 alerts: %v", err)
	}
}

// The last decision of each rule is returned.
func TestHistoryHasTheLastDecisions(t *testing.T) {
	w := newWorld(t)
	history, err := alerts.NewHistory(w.js.Conn(), w.prefix)
	testkit.Must(t, err)
	w.ensure(t)
	var all []api.Transition
	for i, rule := range []string{"api", "api", "day"} {
		at := int64(1000 + i)
		all = append(all, api.Transition{Rule: rule, Key: "user:1", State: api.StateThrottled, Level: 100, Limit: 10,
			WindowMs: 1000, Version: at, AtMs: at, UntilMs: at + 60_000, ExpiresMs: at + 60_000})
	}
	testkit.Must(t, w.publisher.Publish(t.Context(), all, 0))
	list, err := history.Decisions(t.Context(), "user:1")
	testkit.Must(t, err)
	if len(list) != 2 || list[0].Rule != "day" || list[1].Version != 1001 {
		t.Errorf("%+v", list)
	}
}

// Follow goes on after a stream was deleted and created again, and the new one has fewer messages than the old one had.
func TestFollowSurvivesANewStream(t *testing.T) {
	w := newWorld(t)
	history, err := alerts.NewHistory(w.js.Conn(), w.prefix)
	testkit.Must(t, err)
	publish := func(keys ...string) {
		t.Helper()
		list := make([]api.Transition, len(keys))
		for i, key := range keys {
			list[i] = api.Transition{Rule: "api", Key: key, State: api.StateThrottled, Level: 100, Limit: 10,
				WindowMs: 1000, Version: 1, AtMs: 1000}
		}
		testkit.Must(t, w.publisher.Publish(t.Context(), list, 0))
	}
	before := make([]string, 500)
	for i := range before {
		before[i] = fmt.Sprint("before:", i)
	}
	publish(before...)
	heard := make(chan string, 1000)
	testkit.Run(t, func(ctx context.Context) { history.Follow(ctx, func(t api.Transition) { heard <- t.Key }) })
	await := func(prefix string) {
		t.Helper()
		for i := range 200 { // Follow does not say when it listens, so publish until it has a message
			publish(fmt.Sprint(prefix, i))
			select {
			case key := <-heard:
				if strings.HasPrefix(key, prefix) {
					return
				}
			case <-time.After(100 * time.Millisecond):
			}
		}
		t.Fatalf("nothing was heard of %s", prefix)
	}
	await("first:")
	testkit.Must(t, w.js.DeleteStream(t.Context(), w.throttle))
	await("second:")
}

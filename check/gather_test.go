package check

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// server stands in for Redis: each run waits until the test lets it end.
type server struct {
	runs chan [][]windows.Request
	end  chan error
	// bad is a key whose counter is broken: a run that holds it fails, with `failure` if that is set.
	bad     string
	failure error
	// partly: what stands before it is answered nevertheless.
	partly bool
}

func newServer() *server {
	return &server{runs: make(chan [][]windows.Request, 100), end: make(chan error, 100)}
}

// refused is an answer of Redis.
type refused string

func (r refused) Error() string { return string(r) }
func (refused) RedisError()     {}

func (s *server) run(_ context.Context, calls [][]windows.Request) ([]windows.Verdict, error) {
	s.runs <- calls
	if err := <-s.end; err != nil {
		return nil, err
	}
	out := make([]windows.Verdict, len(calls))
	for i, c := range calls {
		if c[0].Key == s.bad {
			err := s.failure
			if err == nil {
				err = refused("WRONGTYPE of " + s.bad)
			}
			if s.partly {
				return out, err
			}
			return nil, err
		}
		// Transitions tell whose it is.
		out[i] = windows.Verdict{Allowed: true, Transitions: c[0].Cost, Items: make([]windows.KeyState, 1)}
	}
	return out, nil
}

// never is a deadline that no call of these tests reaches.
var never = time.Now().Add(time.Hour)

func single(key string, cost int64) [][]windows.Request {
	return [][]windows.Request{{{Key: key, Cost: cost}}}
}

// asks starts a caller and waits until its call is sent or waits.
func asks(t *testing.T, g *gatherer, ctx context.Context, key string, cost int64, done func(windows.Verdict, error)) {
	t.Helper()
	g.mu.Lock()
	before := g.calls
	idle := !g.busy
	g.mu.Unlock()
	go func() {
		v, err := g.do(ctx, never, single(key, cost))
		if err != nil {
			done(windows.Verdict{}, err)
			return
		}
		done(v[0], nil)
	}()
	for !idle {
		g.mu.Lock()
		now := g.calls
		g.mu.Unlock()
		if now > before {
			return
		}
	}
}

// comeToRest waits until no run is under way: the last answer comes before its end.
func comeToRest(g *gatherer) {
	for busy := true; busy; runtime.Gosched() {
		g.mu.Lock()
		busy = g.busy
		g.mu.Unlock()
	}
}

// An idle server is asked at once. What comes while a run is under way shares the
// next, and each caller gets its own answer.
func TestCallsThatWaitShareARun(t *testing.T) {
	s := newServer()
	g := newGatherer(time.Minute, nil, s.run)
	var got sync.Map
	var callers sync.WaitGroup
	ask := func(i int64) {
		callers.Add(1)
		asks(t, g, t.Context(), fmt.Sprint(i), i, func(v windows.Verdict, err error) {
			got.Store(i, fmt.Sprint(v.Transitions, err))
			callers.Done()
		})
	}
	ask(1)
	if n := len(<-s.runs); n != 1 {
		t.Fatalf("%d calls in the first run", n)
	}
	for i := int64(2); i <= 9; i++ {
		ask(i)
	}
	s.end <- nil
	if n := len(<-s.runs); n != 8 {
		t.Fatalf("%d calls in the second run, want the 8 that waited", n)
	}
	s.end <- nil
	callers.Wait()
	for i := int64(1); i <= 9; i++ {
		if v, _ := got.Load(i); v != fmt.Sprint(i, " <nil>") {
			t.Errorf("call %d was answered %v", i, v)
		}
	}
	ask(10) // idle again
	<-s.runs
	s.end <- nil
	callers.Wait()
}

// A caller who leaves before its call is sent is not charged.
func TestACallThatWasNotSentIsTakenBack(t *testing.T) {
	s := newServer()
	g := newGatherer(time.Minute, nil, s.run)
	failed := make(chan error, 3)
	note := func(_ windows.Verdict, err error) { failed <- err }
	asks(t, g, t.Context(), "first", 1, note)
	<-s.runs
	ctx, leave := context.WithCancel(t.Context())
	asks(t, g, ctx, "leaves", 1, note)
	asks(t, g, t.Context(), "stays", 1, note)
	leave()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatalf("who left was told %v", err)
	}
	s.end <- nil
	if calls := <-s.runs; len(calls) != 1 || calls[0][0].Key != "stays" {
		t.Errorf("sent: %v", calls)
	}
	s.end <- nil
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	nobodyWaits(t, g)
}

// nobodyWaits says that a gatherer at rest knows it.
func nobodyWaits(t *testing.T, g *gatherer) {
	t.Helper()
	comeToRest(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls != 0 {
		t.Errorf("%d calls are thought to wait where none does", g.calls)
	}
}

// The deadline of a call holds also where the run that it waits for, or is part of, hangs.
func TestACallEndsInTimeBesideARunThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		g := newGatherer(time.Minute, nil, s.run)
		type told struct {
			after   time.Duration
			err     error
			notSent bool
		}
		began := time.Now()
		answers := map[string]told{}
		var mu sync.Mutex
		ask := func(key string, within time.Duration) {
			go func() {
				_, err := g.do(t.Context(), began.Add(within), single(key, 1))
				mu.Lock()
				defer mu.Unlock()
				answers[key] = told{time.Since(began), err, errors.Is(err, api.ErrNotSent)}
			}()
			synctest.Wait()
		}
		ask("first", time.Minute)
		ask("sent late", 3*time.Second)
		ask("sent", 2*time.Second) // an earlier deadline than that of who came before
		ask("sent and answered", time.Minute)
		<-s.runs
		s.end <- nil
		<-s.runs // hangs
		ask("waits", 4*time.Second)
		ask("waits and is answered", time.Minute)
		time.Sleep(10 * time.Second) // of the test's own clock
		synctest.Wait()
		s.end <- nil
		if calls := <-s.runs; len(calls) != 1 || calls[0][0].Key != "waits and is answered" {
			t.Errorf("sent after the run that hung: %v", calls)
		}
		s.end <- nil
		synctest.Wait()
		want := map[string]told{"first": {}, "sent": {after: 2 * time.Second, err: context.DeadlineExceeded},
			"sent late":             {after: 3 * time.Second, err: context.DeadlineExceeded},
			"sent and answered":     {after: 10 * time.Second},
			"waits":                 {after: 4 * time.Second, err: context.DeadlineExceeded, notSent: true},
			"waits and is answered": {after: 10 * time.Second}}
		for key, want := range want {
			if got, ok := answers[key]; !ok || got.after != want.after || !errors.Is(got.err, want.err) ||
				got.notSent != want.notSent {
				t.Errorf("%s: %+v, want %+v", key, got, want)
			}
		}
	})
}

// One broken key takes the answer from nobody else; a server that does not answer
// is not asked once more for each.
func TestABrokenKeyOfARun(t *testing.T) {
	s := newServer()
	s.bad = "broken"
	g := newGatherer(time.Minute, nil, s.run)
	type told struct {
		key string
		err error
	}
	answers := make(chan told, 10)
	ask := func(key string) {
		asks(t, g, t.Context(), key, 1, func(_ windows.Verdict, err error) { answers <- told{key, err} })
	}
	ask("first")
	<-s.runs
	ask("a")
	ask("broken")
	ask("b")
	for range 5 { // the first run, the shared one, and each by itself
		s.end <- nil
	}
	for range 4 {
		if a := <-answers; (a.err != nil) != (a.key == "broken") {
			t.Errorf("%s: %v", a.key, a.err)
		}
	}
	for range 4 {
		<-s.runs
	}
	gone := errors.New("no answer")
	comeToRest(g)
	ask("first")
	<-s.runs
	ask("a")
	ask("b")
	s.end <- nil
	s.end <- gone
	for range 3 {
		if a := <-answers; (a.err != nil) != (a.key != "first") {
			t.Errorf("%s: %v", a.key, a.err)
		}
	}
	<-s.runs
	if n := len(s.runs); n != 0 {
		t.Errorf("%d more runs after one that was not answered", n)
	}
}

// What a run answered before it failed is not asked again, as it is charged, and its callers
// have their answers. The others are asked again only where Redis refused the script.
func TestARunAnsweredInPart(t *testing.T) {
	for name, c := range map[string]struct {
		failure error
		want    []string
		runs    [][]string // after the first
	}{
		"refused": {nil, []string{"a false", "b false", "broken true", "first false"},
			[][]string{{"a", "broken", "b"}, {"broken"}, {"b"}}},
		"no answer in time": {context.DeadlineExceeded, []string{"a false", "b true", "broken true", "first false"},
			[][]string{{"a", "broken", "b"}}},
	} {
		t.Run(name, func(t *testing.T) { answeredInPart(t, c.failure, c.want, c.runs) })
	}
}

func answeredInPart(t *testing.T, failure error, want []string, runs [][]string) {
	s := newServer()
	s.bad, s.partly, s.failure = "broken", true, failure
	g := newGatherer(time.Minute, nil, s.run)
	answers := make(chan string, 4)
	ask := func(key string) {
		asks(t, g, t.Context(), key, 1, func(_ windows.Verdict, err error) {
			answers <- fmt.Sprint(key, " ", err != nil)
		})
	}
	ask("first")
	<-s.runs
	for _, key := range []string{"a", "broken", "b"} {
		ask(key)
	}
	for range 1 + len(runs) {
		s.end <- nil
	}
	var got []string
	for range 4 {
		got = append(got, <-answers)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("answers (whether there was an error): %v, want %v", got, want)
	}
	for _, keys := range runs {
		for i, call := range <-s.runs {
			if i >= len(keys) || call[0].Key != keys[i] {
				t.Errorf("a run asked for %s as call %d, want %v", call[0].Key, i, keys)
			}
		}
	}
	if len(s.runs) != 0 {
		t.Error("more runs than expected")
	}
}

// Under overload a call that would be answered too late is not sent, so that the others are answered in time.
func TestACallWithTooLittleTimeIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		g := newGatherer(time.Second, nil, s.run)
		answers := map[string]error{}
		var mu sync.Mutex
		ask := func(key string, within time.Duration) {
			until := time.Now().Add(within)
			go func() {
				_, err := g.do(t.Context(), until, single(key, 1))
				mu.Lock()
				defer mu.Unlock()
				answers[key] = err
			}()
			synctest.Wait()
		}
		run := func(takes time.Duration, want ...string) {
			t.Helper()
			var got []string
			for _, call := range <-s.runs {
				got = append(got, call[0].Key)
			}
			if !slices.Equal(got, want) {
				t.Errorf("a run of %q, want %q", got, want)
			}
			time.Sleep(takes) // of the test's own clock
			s.end <- nil
			synctest.Wait()
		}
		ask("first", time.Second)
		ask("a", time.Second)
		run(0, "first")
		ask("b", 400*time.Millisecond)
		run(300*time.Millisecond, "a") // one run that takes long says nothing of the next
		ask("late", 500*time.Millisecond)
		ask("in time", 800*time.Millisecond)
		run(300*time.Millisecond, "b")
		if err := answers["late"]; !errors.Is(err, api.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call with 200 ms left after two runs of 300 ms was told %v", err)
		}
		if g.calls != 0 {
			t.Errorf("%d calls are thought to wait where none does", g.calls)
		}
		ask("c", 1400*time.Millisecond)
		run(900*time.Millisecond, "in time")
		ask("half", 1500*time.Millisecond)
		run(900*time.Millisecond, "c") // no runs keep anybody away who has half of the timeout
		run(900*time.Millisecond, "half")
		if err := answers["half"]; !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, api.ErrNotSent) {
			t.Errorf("a call that was sent and not answered in time was told %v", err)
		}
		ask("idle", time.Second) // a call by itself is a run too
		ask("d", 100*time.Millisecond)
		run(0, "idle")
		run(0, "d")
		for _, key := range []string{"first", "a", "idle", "d"} {
			if err, ok := answers[key]; err != nil || !ok {
				t.Errorf("%s was told %v", key, err)
			}
		}
	})
}

// A run of calls of many keys is as short as one of many calls, or it would take longer than its callers wait.
func TestTheKeysOfARunAreBounded(t *testing.T) {
	s := newServer()
	g := newGatherer(time.Minute, nil, s.run)
	var callers sync.WaitGroup
	asks(t, g, t.Context(), "first", 1, func(windows.Verdict, error) {})
	<-s.runs
	const waiting, keys = 200, 100
	call := make([]windows.Request, keys)
	call[0].Key = "many"
	for i := range waiting {
		callers.Go(func() {
			if _, err := g.do(t.Context(), never, [][]windows.Request{call}); err != nil {
				t.Error(err)
			}
		})
		for n := -1; n <= i; runtime.Gosched() {
			g.mu.Lock()
			n = g.calls
			g.mu.Unlock()
		}
	}
	s.end <- nil
	for left := waiting; left > 0; {
		n := len(<-s.runs)
		if n != min(left, maxGatheredKeys/keys) {
			t.Errorf("a run of %d calls of %d keys where %d wait", n, keys, left)
		}
		left -= n
		s.end <- nil
	}
	callers.Wait()
	nobodyWaits(t, g)
}

// What waits is bounded, and so is a run.
func TestGatheringIsBounded(t *testing.T) {
	s := newServer()
	g := newGatherer(time.Minute, nil, s.run)
	var callers sync.WaitGroup
	ask := func(n int) {
		g.mu.Lock()
		before, busy := g.calls, g.busy
		g.mu.Unlock()
		callers.Go(func() {
			calls := make([][]windows.Request, n)
			for i := range calls {
				calls[i] = []windows.Request{{Key: "k"}}
			}
			if _, err := g.do(t.Context(), never, calls); err != nil {
				t.Error(err)
			}
		})
		for busy {
			g.mu.Lock()
			now := g.calls
			g.mu.Unlock()
			if now > before {
				return
			}
		}
	}
	ask(1)
	<-s.runs
	for range maxWaiting / 100 {
		ask(100)
	}
	if _, err := g.do(t.Context(), never, single("one too many", 1)); !errors.Is(err, errTooManyWait) {
		t.Errorf("one too many: %v", err)
	}
	s.end <- nil
	for range maxWaiting / 200 {
		if n := len(<-s.runs); n != 200 {
			t.Fatalf("a run of %d calls, want the 200 of two callers, at most %d", n, maxGathered)
		}
		s.end <- nil
	}
	callers.Wait()
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// desk takes a millisecond for each check.
func desk(answer func(ctx context.Context) (api.CheckAnswer, error)) *idempotent {
	return &idempotent{stub{answer: func(ctx context.Context, _ []api.CheckRequest) (api.ChecksAnswer, error) {
		time.Sleep(time.Millisecond) // of the bubble
		a, err := answer(ctx)
		return api.ChecksAnswer{Checks: []api.CheckAnswer{a}}, err
	}}}
}

func admitted() api.CheckAnswer {
	return api.CheckAnswer{Allowed: true, Rule: "api", Source: api.SourceRedis}
}

func deniedFor(wait time.Duration) api.CheckAnswer {
	return api.CheckAnswer{Rule: "api", RetryAfterMs: wait.Milliseconds(), Source: api.SourceRedis}
}

// always returns one answer to every check.
func always(a api.CheckAnswer, err error) *idempotent {
	return desk(func(context.Context) (api.CheckAnswer, error) { return a, err })
}

// denying denies for as long as wait returns, and admits if that is nothing.
func denying(wait func() time.Duration) *idempotent {
	return desk(func(context.Context) (api.CheckAnswer, error) {
		if wait := wait(); wait > 0 {
			return deniedFor(wait + time.Millisecond - 1), nil
		}
		return admitted(), nil
	})
}

// start calls Wait in another goroutine, and returns when Wait waits for something.
func start(ctx context.Context, c *client.Client, key string) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- c.Wait(ctx, key, 1) }()
	synctest.Wait()
	return ended
}

// notYet fails the test if the Wait has ended.
func notYet(t *testing.T, name string, ended chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		t.Errorf("%s has ended: %v", name, err)
	default:
	}
}

// One caller of a process asks for a key at a time. The callers are admitted in the order in which they came.
func TestWaitIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, next := time.Now(), time.Now().Add(time.Second) // one unit a second
		d := denying(func() time.Duration {
			wait := time.Until(next)
			if wait <= 0 {
				next = time.Now().Add(time.Second)
			}
			return wait
		})
		c := newClient(t, d, client.Config{})
		const callers = 20
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				if err := c.Wait(t.Context(), "user:1", 1); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			})
			synctest.Wait() // until it is in the queue
		}
		all.Wait()
		if len(order) != callers || !slices.IsSorted(order) {
			t.Errorf("they were admitted in the order %v", order)
		}
		if d.asked > 2*callers {
			t.Errorf("%d checks, want at most %d", d.asked, 2*callers)
		}
		least := callers * time.Second
		if took := time.Since(began); took < least || took > least+callers*60*time.Millisecond {
			t.Errorf("it took %s, want %s and up to 60ms for each", took, least)
		}
	})
}

// releases stands in for a guard: it passes on what the test sends.
type releases struct {
	mu   sync.Mutex
	keys map[string]chan struct{}
}

func (r *releases) Released(key string) (<-chan struct{}, func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys[key] = make(chan struct{}, 1)
	return r.keys[key], func() { r.mu.Lock(); defer r.mu.Unlock(); delete(r.keys, key) }
}

// A release ends the wait early. An answer that a cache gives right after it may be older than the release.
func TestWaitWakesAtARelease(t *testing.T) {
	for _, stale := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			answer, asked := deniedFor(time.Hour), 0
			d := desk(func(context.Context) (api.CheckAnswer, error) {
				now := answer
				if asked++; stale && asked == 3 {
					now = deniedFor(time.Hour)
					now.Source = api.SourceCache
				}
				return now, nil
			})
			r := &releases{keys: map[string]chan struct{}{}}
			c := newClient(t, d, client.Config{Releases: r})
			ended := start(t.Context(), c, "user:1")
			r.keys["user:1"] <- struct{}{} // one that changes nothing for this cost
			time.Sleep(time.Minute)
			notYet(t, "a wait that is still denied", ended)
			if asked != 2 {
				t.Errorf("%d checks, want one, and one at the release", asked)
			}
			answer = admitted()
			r.keys["user:1"] <- struct{}{}
			began := time.Now()
			testkit.Must(t, <-ended)
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("it was admitted %s after the release", took)
			}
			if len(r.keys) != 0 {
				t.Error("nobody waits, and it listens still")
			}
		})
	}
}

// A caller that is cancelled does not delay the others.
func TestACancelledWaitLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := time.Hour
		d := denying(func() time.Duration { return wait })
		c := newClient(t, d, client.Config{})
		ctxA, cancelA := context.WithCancel(t.Context())
		ctxB, cancelB := context.WithCancel(t.Context())
		a := start(ctxA, c, "user:1")
		b := start(ctxB, c, "user:1")
		last := start(t.Context(), c, "user:1")
		time.Sleep(time.Second) // the first has its answer
		cancelB()
		if err := <-b; !errors.Is(err, context.Canceled) {
			t.Errorf("in the queue: %v", err)
		}
		notYet(t, "the first", a)
		notYet(t, "the last", last)
		wait = 0
		began := time.Now()
		testkit.Must(t, c.Wait(t.Context(), "user:2", 1)) // another key is not behind them
		cancelA()
		if err := <-a; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %v", err)
		}
		testkit.Must(t, <-last)
		if took := time.Since(began); took > time.Second || d.asked != 3 {
			t.Errorf("the last was admitted after %s and %d checks, want 3: it was its turn at once", took, d.asked)
		}
		if err := c.Wait(ctxA, "user:1", 1); !errors.Is(err, context.Canceled) || d.asked != 3 {
			t.Errorf("with a context that has ended: %v, %d checks", err, d.asked)
		}
	})
}

// If an answer has a longer wait than there is time, the wait ends at once, for the caller and for those behind it.
// MaxWait also bounds how long a caller waits for the callers before it.
func TestAWaitThatIsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			t.Cleanup(cancel)
			return ctx
		}
		began := time.Now()
		atOnce := func(err error, wait, left string) {
			t.Helper()
			var over *client.OverLimitError
			if !errors.Is(err, client.ErrOverLimit) || !errors.As(err, &over) || over.Answer.RetryAfterMs < 59_000 {
				t.Errorf("error %v, want one that wraps ErrOverLimit and has the answer", err)
			} else if text := err.Error(); !strings.Contains(text, "retry after "+wait) ||
				!strings.Contains(text, left+" are left") {
				t.Errorf("error %q, want that it names the wait and the time there is", text)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("after %s, want at once", took)
			}
		}
		always := always(deniedFor(time.Minute), nil)
		c := newClient(t, always, client.Config{MaxWait: 10 * time.Second})
		atOnce(c.Wait(t.Context(), "user:1", 1), "1m0s", "9.999s")
		c = newClient(t, always, client.Config{MaxWait: time.Hour})
		atOnce(c.Wait(short(), "user:1", 1), "1m0s", "9.999s")

		began = time.Now()
		free := began.Add(time.Minute)
		d := denying(func() time.Duration { return time.Until(free) })
		c = newClient(t, d, client.Config{})
		first := start(t.Context(), c, "user:1")
		before := start(short(), c, "user:1") // there is no answer yet
		third := start(t.Context(), c, "user:1")
		atOnce(<-before, "59.999s", "9.999s")
		notYet(t, "the first", first)
		atOnce(c.Wait(short(), "user:1", 1), "59.999s", "10s")
		testkit.Must(t, <-first)
		testkit.Must(t, <-third)
		if d.asked != 3 {
			t.Errorf("%d checks, want 3: those without time asked nobody", d.asked)
		}

		answered := make(chan time.Duration)
		c = newClient(t, denying(func() time.Duration { return <-answered }), client.Config{MaxWait: 10 * time.Second,
			Timeout: time.Hour})
		first, began = start(t.Context(), c, "user:1"), time.Now()
		err := c.Wait(t.Context(), "user:1", 1)
		if took := time.Since(began); !errors.Is(err, client.ErrOverLimit) || took != 10*time.Second {
			t.Errorf("behind one that has no answer: %v after %s, want ErrOverLimit after 10s", err, took)
		}
		close(answered)
		testkit.Must(t, <-first)
	})
}

// Wait returns at once if no wait helps.
func TestWaitNever(t *testing.T) {
	tooMuch := fmt.Errorf("%w: cost 5 of 3", api.ErrCostExceedsLimit)
	unavailable := fmt.Errorf("%w: the rule denies", api.ErrUnavailable)
	for name, one := range map[string]struct {
		answer api.CheckAnswer
		err    error
		want   error
	}{
		"blocked":                {deniedFor(-time.Millisecond), nil, client.ErrOverLimit},
		"no wait is known":       {deniedFor(0), nil, client.ErrOverLimit},
		"a cost above the limit": {api.CheckAnswer{}, tooMuch, api.ErrCostExceedsLimit},
		"a server that denies":   {api.CheckAnswer{}, unavailable, api.ErrUnavailable},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := always(one.answer, one.err)
			err := newClient(t, d, client.Config{}).Wait(t.Context(), "user:1", 5)
			if !errors.Is(err, one.want) || d.asked != 1 || !strings.Contains(err.Error(), `"user:1"`) {
				t.Errorf("%s: %v after %d checks, want %v after one", name, err, d.asked, one.want)
			}
		})
	}
}

// A caller's idempotency key is charged once, and an earlier denial with the key is not the answer for ever.
func TestWaitWithAnIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var keys []string
		d := desk(func(ctx context.Context) (api.CheckAnswer, error) {
			keys = append(keys, api.IdempotencyKey(ctx).Key)
			switch a := deniedFor(time.Second); len(keys) {
			case 1:
				a.Replayed = true
				return a, nil
			case 2:
				return a, nil
			}
			return admitted(), nil
		})
		began, ctx := time.Now(), api.WithIdempotency(t.Context(), api.Idempotency{Key: "job-7"})
		testkit.Must(t, newClient(t, d, client.Config{}).Wait(ctx, "user:1", 1))
		if want := []string{"job-7.0", "job-7.1", "job-7.2"}; !slices.Equal(keys, want) {
			t.Errorf("keys %v, want %v", keys, want)
		}
		if took := time.Since(began); took >= 2*time.Second {
			t.Errorf("it took %s: it waited for an old answer", took)
		}
	})
}

// A server that answers with old denials alone is asked with pauses, and no longer than MaxWait. The last check may end
// a millisecond later.
func TestWaitWhileAllAnswersAreOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := always(api.CheckAnswer{Replayed: true, RetryAfterMs: -1, Rule: "api", Source: api.SourceRedis}, nil)
		began, c := time.Now(), newClient(t, d, client.Config{MaxWait: 3 * time.Second})
		err := c.Wait(t.Context(), "user:1", 1)
		took := time.Since(began)
		if !errors.Is(err, client.ErrOverLimit) || took > 3*time.Second+time.Millisecond || d.asked > 100 {
			t.Errorf("%v after %d checks in %s, want ErrOverLimit after at most 100 in 3s", err, d.asked, took)
		}
	})
}

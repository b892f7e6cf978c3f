package httpmw_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/client/httpmw"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
	"github.com/streamcounter/streamcounter/windows"
)

// slots is a client of a Redis with its own prefix, with one slot for each key user:*. It records each slot.
type slots struct {
	*client.Client
	redis *direct.Redis
	last  *client.Slot
}

func (s *slots) Acquire(ctx context.Context, key string, cost int64) (slot *client.Slot, err error) {
	slot, err = s.Client.Acquire(ctx, key, cost)
	if slot != nil {
		s.last = slot
	}
	return slot, err
}

// wantFree expects that no slot is held, and that so many requests were charged.
func (s *slots) wantFree(t *testing.T, charged int64) {
	t.Helper()
	k, err := s.redis.Peek(t.Context(), "user:1")
	testkit.Must(t, err)
	if k.Windows[0].Used != 0 || k.Windows[1].Used != charged {
		t.Errorf("%d in flight and %d charged, want 0 and %d", k.Windows[0].Used, k.Windows[1].Used, charged)
	}
}

func newSlots(t *testing.T, lease time.Duration) *slots {
	t.Helper()
	rules, err := windows.NewRules([]*windows.Rule{{Name: "user", Match: "user:*", Windows: []windows.Window{
		{Limit: 1, Per: lease, InFlight: true}, {Limit: 100, Per: time.Hour}}}})
	testkit.Must(t, err)
	r, err := direct.NewRedis(t.Context(), streamtest.Connect(t, streamtest.Redis(t)),
		direct.Config{Rules: windows.Fixed(rules).Rules, Prefix: streamtest.Prefix(t)})
	testkit.Must(t, err)
	c, err := client.New(r, client.Config{Timeout: 20 * time.Second})
	testkit.Must(t, err)
	return &slots{Client: c, redis: r}
}

// holding puts the middleware before a handler.
func holding(t *testing.T, s *slots, handler http.HandlerFunc) http.Handler {
	t.Helper()
	limit, err := httpmw.New(httpmw.Config{Slots: s, Key: httpmw.Header("X-Key", ""),
		OnError: func(_ *http.Request, err error) { t.Error(err) }})
	testkit.Must(t, err)
	return limit(handler)
}

func asUser(r *http.Request) { r.Header.Set("X-Key", "user:1") }

// While a request is served no other one of its key is; then its slot is free.
func TestASlotForEachRequest(t *testing.T) {
	s := newSlots(t, time.Minute)
	depth := 0
	var h http.Handler
	h = holding(t, s, func(w http.ResponseWriter, _ *http.Request) {
		if depth++; depth > 1 {
			t.Error("two at once")
			return
		}
		inner := get(h, asUser)
		if inner.Code != 429 || inner.Header().Get("Retry-After") == "" {
			t.Errorf("a second one: %d %v", inner.Code, inner.Header())
		}
		fmt.Fprint(w, "done")
	})
	for range 2 {
		depth = 0
		if w := get(h, asUser); w.Code != 200 || w.Header().Get("RateLimit-Policy") == "" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	s.wantFree(t, 2)
	reached := false
	h = holding(t, s, func(http.ResponseWriter, *http.Request) { reached = true })
	if w := get(h, func(r *http.Request) { r.Header.Set("X-Key", "nobody") }); w.Code != 200 || !reached {
		t.Errorf("a key without a rule: %d", w.Code)
	}
}

// The slot of a handler that panics, or whose caller hangs up, is free again.
func TestASlotWhoseHandlerEndsEarly(t *testing.T) {
	s := newSlots(t, time.Minute)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		get(holding(t, s, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), asUser)
	}()
	s.wantFree(t, 1)
	begun := make(chan struct{}) // Redis holds the slot earlier than the middleware knows of it
	h := holding(t, s, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	})
	ctx, hangUp := context.WithCancel(t.Context())
	served := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	req, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
	testkit.Must(t, err)
	asUser(req)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Errorf("answered with %d", resp.StatusCode)
		}
	}()
	select {
	case <-begun:
	case <-gone:
	}
	hangUp()
	<-gone
	<-served
	s.wantFree(t, 2)
}

// The context of the request ends when its slot is lost, and OnError is called.
func TestALostSlotEndsTheRequest(t *testing.T) {
	s := newSlots(t, 600*time.Millisecond)
	var heard error
	limit, err := httpmw.New(httpmw.Config{Slots: s, Key: httpmw.Header("X-Key", ""),
		OnError: func(_ *http.Request, err error) { heard = err }})
	testkit.Must(t, err)
	get(limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := s.redis.Cancel(r.Context(), s.last.ID())
		testkit.Must(t, err)
		<-r.Context().Done()
		if cause := context.Cause(r.Context()); !errors.Is(cause, client.ErrSlotLost) {
			t.Errorf("it ended with %v", cause)
		}
	})), asUser)
	if !errors.Is(heard, api.ErrReservationSettled) {
		t.Errorf("heard of %v", heard)
	}
}

// unanswered is a Slots that never answers.
type unanswered struct{}

func (unanswered) Acquire(context.Context, string, int64) (*client.Slot, error) {
	return nil, transport.NotSent(errors.New("refused"))
}

// optional lets requests pass without a slot if there is no answer.
type optional struct{}

func (optional) Acquire(context.Context, string, int64) (*client.Slot, error) { return nil, nil }

func TestSlotsThatNobodyGives(t *testing.T) {
	limit, err := httpmw.New(httpmw.Config{Slots: unanswered{}, Key: httpmw.Header("X-Key", "")})
	testkit.Must(t, err)
	if w := get(limit(http.NotFoundHandler()), asUser); w.Code != 503 {
		t.Errorf("%d, want 503", w.Code)
	}
	limit, err = httpmw.New(httpmw.Config{Slots: optional{}, Key: httpmw.Header("X-Key", "")})
	testkit.Must(t, err)
	if w := get(limit(http.NotFoundHandler()), asUser); w.Code != 404 {
		t.Errorf("%d, want the handler's 404", w.Code)
	}
	if _, err := httpmw.New(httpmw.Config{Slots: unanswered{}, Checker: &checker{}, Key: httpmw.Header("X-Key",
		"")}); err == nil {
		t.Error("Checker and Slots together were taken")
	}
}

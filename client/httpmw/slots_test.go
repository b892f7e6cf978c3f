package httpmw_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/httpmw"
	"github.com/streamcounter/streamcounter/internal/gate/gatetest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// holding puts the middleware before a handler. told receives its errors.
func holding(t *testing.T, s *gatetest.OneSlot, told func(error), handler http.HandlerFunc) http.Handler {
	t.Helper()
	limit, err := httpmw.New(httpmw.Config{Slots: s.Client(t), Key: httpmw.Header("X-Key", ""),
		OnError: func(_ *http.Request, err error) { told(err) }})
	testkit.Must(t, err)
	return limit(handler)
}

// While a request is served no other one of its key is. Then its slot is free, also if its handler panics or its caller
// hangs up.
func TestASlotForEachRequest(t *testing.T) {
	s := &gatetest.OneSlot{TTLMs: 60_000}
	told := func(err error) { t.Error(err) }
	second := holding(t, s, told, func(http.ResponseWriter, *http.Request) { t.Error("two at once") })
	ctx, hangUp := context.WithCancel(t.Context())
	for name, handler := range map[string]http.HandlerFunc{
		"a second one": func(http.ResponseWriter, *http.Request) {
			if w := get(second); w.Code != 429 || w.Header().Get("Retry-After") != "2" {
				t.Errorf("a second one: %d %v", w.Code, w.Header())
			}
		},
		"a panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"the caller hangs up": func(_ http.ResponseWriter, r *http.Request) {
			hangUp()
			<-r.Context().Done()
		},
	} {
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != (name == "a panic") || s.Taken.Load() {
					t.Errorf("%s: panicked %t, its slot is taken: %t", name, panicked, s.Taken.Load())
				}
			}()
			get(holding(t, s, told, handler), func(r *http.Request) {
				if name == "the caller hangs up" {
					*r = *r.WithContext(ctx)
				}
			})
		}()
	}
	h := holding(t, s, told, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	if w := get(h, func(r *http.Request) { r.Header.Set("X-Key", "nobody") }); w.Code != 204 {
		t.Errorf("a key without a rule: %d", w.Code)
	}
}

// The context of the request ends when its slot is lost, and OnError is called.
func TestALostSlotEndsTheRequest(t *testing.T) {
	var heard error
	get(holding(t, &gatetest.OneSlot{TTLMs: 30}, func(err error) { heard = err },
		func(_ http.ResponseWriter, r *http.Request) {
			if <-r.Context().Done(); !errors.Is(context.Cause(r.Context()), client.ErrSlotLost) {
				t.Errorf("it ended with %v", context.Cause(r.Context()))
			}
		}))
	if !errors.Is(heard, api.ErrReservationExpired) {
		t.Errorf("heard of %v", heard)
	}
}

// optional lets requests pass without a slot if there is no answer.
type optional struct{}

func (optional) Acquire(context.Context, string, int64) (*client.Slot, error) { return nil, nil }

func TestSlotsThatNobodyGives(t *testing.T) {
	var heard error
	h := holding(t, &gatetest.OneSlot{Away: true}, func(err error) { heard = err }, http.NotFound)
	if w := get(h); w.Code != 503 || !errors.Is(heard, api.ErrUnavailable) {
		t.Errorf("%d, heard of %v, want 503", w.Code, heard)
	}
	limit, err := httpmw.New(httpmw.Config{Slots: optional{}, Key: httpmw.Header("X-Key", "")})
	testkit.Must(t, err)
	if w := get(limit(http.NotFoundHandler())); w.Code != 404 {
		t.Errorf("%d, want the handler's 404", w.Code)
	}
}

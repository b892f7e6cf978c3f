package grpcmw_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/grpcmw"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// single stands in for a server with one slot.
type single struct {
	client.Checker
	taken atomic.Bool
	away  bool
	// ttlMs of a slot; renewals of it are refused.
	ttlMs int64
}

func (s *single) Reserve(context.Context, api.ReservationRequest) (r api.ReservationOfAll, err error) {
	if s.away {
		return r, transport.NotSent(errors.New("refused"))
	}
	r.Checks = []api.CheckAnswer{{RetryAfterMs: 1500}}
	if s.taken.CompareAndSwap(false, true) {
		r.Allowed, r.ID, r.TTLMs = true, "0a-1", s.ttlMs
	}
	return r, nil
}

func (s *single) Renew(context.Context, string, api.RenewRequest) (api.Settlement, error) {
	return api.Settlement{}, api.ErrReservationExpired
}

func (s *single) Commit(context.Context, string, api.CommitRequest) (api.Settlement, error) {
	s.taken.Store(false)
	return api.Settlement{State: api.ReservationCommitted}, nil
}

func (s *single) Cancel(context.Context, string) (api.Settlement, error) {
	panic("a call commits its slot")
}

// holding calls a handler through each kind of interceptor, and returns the error of the call.
func holding(t *testing.T, s *single, test func(t *testing.T, call func(handler func(context.Context)) error)) {
	c, err := client.New(s, client.Config{Retries: -1})
	testkit.Must(t, err)
	limit, err := grpcmw.New(grpcmw.Config{Slots: c, Key: func(context.Context, string) (string, bool) {
		return "job:1", true
	}})
	testkit.Must(t, err)
	t.Run("unary", func(t *testing.T) {
		test(t, func(handler func(context.Context)) error {
			_, err := limit.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/a.B/C"},
				func(ctx context.Context, _ any) (any, error) { handler(ctx); return nil, nil })
			return err
		})
	})
	t.Run("stream", func(t *testing.T) {
		test(t, func(handler func(context.Context)) error {
			return limit.Stream()(nil, stream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/a.B/C"},
				func(_ any, s grpc.ServerStream) error { handler(s.Context()); return nil })
		})
	})
}

func TestASlotForEachCall(t *testing.T) {
	s := &single{ttlMs: 60_000}
	holding(t, s, func(t *testing.T, call func(func(context.Context)) error) {
		testkit.Must(t, call(func(context.Context) {
			err := call(func(context.Context) { t.Error("two at once") })
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a second one: %v", err)
			}
		}))
		if s.taken.Load() {
			t.Error("the slot is not free after the call")
		}
		func() {
			defer func() { _ = recover() }()
			_ = call(func(context.Context) { panic("the handler") })
		}()
		if s.taken.Load() {
			t.Error("the slot is not free after a panic")
		}
		s.away = true
		defer func() { s.away = false }()
		if err := call(func(context.Context) { t.Error("reached") }); status.Code(err) != codes.Unavailable {
			t.Errorf("nobody answers: %v", err)
		}
	})
}

func TestALostSlotEndsTheCall(t *testing.T) {
	holding(t, &single{ttlMs: 30}, func(t *testing.T, call func(func(context.Context)) error) {
		testkit.Must(t, call(func(ctx context.Context) {
			if <-ctx.Done(); !errors.Is(context.Cause(ctx), client.ErrSlotLost) {
				t.Errorf("it ended with %v", context.Cause(ctx))
			}
		}))
	})
}

// stream is one that only has a context and takes headers.
type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s stream) Context() context.Context    { return s.ctx }
func (stream) SetHeader(_ metadata.MD) error { return nil }

package grpcmw_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/client/grpcmw"
	"github.com/streamcounter/streamcounter/internal/gate/gatetest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// holding calls a handler through each kind of interceptor, and returns the error of the call.
func holding(t *testing.T, s *gatetest.OneSlot,
	test func(t *testing.T, call func(handler func(context.Context)) error)) {
	limit, err := grpcmw.New(grpcmw.Config{Slots: s.Client(t), Key: func(context.Context, string) (string, bool) {
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
	s := &gatetest.OneSlot{TTLMs: 60_000}
	holding(t, s, func(t *testing.T, call func(func(context.Context)) error) {
		testkit.Must(t, call(func(context.Context) {
			err := call(func(context.Context) { t.Error("two at once") })
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("a second one: %v", err)
			}
		}))
		if s.Taken.Load() {
			t.Error("the slot is not free after the call")
		}
		func() {
			defer func() { _ = recover() }()
			_ = call(func(context.Context) { panic("the handler") })
		}()
		if s.Taken.Load() {
			t.Error("the slot is not free after a panic")
		}
		s.Away = true
		defer func() { s.Away = false }()
		if err := call(func(context.Context) { t.Error("reached") }); status.Code(err) != codes.Unavailable {
			t.Errorf("nobody answers: %v", err)
		}
	})
}

func TestALostSlotEndsTheCall(t *testing.T) {
	holding(t, &gatetest.OneSlot{TTLMs: 30}, func(t *testing.T, call func(func(context.Context)) error) {
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

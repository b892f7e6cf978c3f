package grpcmw

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/gate"
)

// Config of the interceptors. Key and one of Guard, Checker and Slots are required.
type Config struct {
	// Guard is asked first; it is a guard.Guard.
	Guard gate.Guard
	// Checker decides and charges; it is a client.Client, whose policy decides if nobody answers. A transport alone
	// has no policy: then the call ends with Unavailable.
	Checker gate.Checker
	// Slots, in place of Checker, holds a slot of an in_flight window while the handler runs, and then charges what
	// was reserved, also if the handler panics; it is a client.Client. A stream holds its slot until it ends. The
	// context of the call ends when the slot is lost (client.ErrSlotLost is its cause). If nobody answers, the call
	// ends with Unavailable, because no policy grants a slot.
	Slots gate.Slots
	// Key returns the key of a call, and false if it has none. Then the call passes, unless RequireKey is set. See
	// Metadata, Peer, Method and First.
	Key KeyFunc
	// RequireKey refuses a call without a key with InvalidArgument; default: it passes. client.Config.UnmatchedKeys
	// decides about a key that no rule matches; default: it passes too.
	RequireKey bool
	// Cost of a call; default 1. Below 1, only the guard is asked. A stream has no request yet, so req is nil.
	Cost func(ctx context.Context, method string, req any) int64
	// Skip lets calls of these methods (/pkg.Service/Method) or services (/pkg.Service/) pass. Nil means DefaultSkip;
	// an empty list skips nothing.
	Skip []string
	// OnError is called with each error, also if the policy let the call pass. May be nil.
	OnError func(ctx context.Context, method string, err error)
	// Now replaces the clock in tests, in ms since 1970.
	Now func() int64
}

// DefaultSkip are health checks and reflection.
var DefaultSkip = []string{"/grpc.health.v1.Health/", "/grpc.reflection.v1.ServerReflection/",
	"/grpc.reflection.v1alpha.ServerReflection/"}

// Limiter makes the interceptors.
type Limiter struct {
	config Config
	gate   gate.Gate
}

// New checks the configuration.
func New(c Config) (*Limiter, error) {
	if c.Key == nil || c.Guard == nil && c.Checker == nil && c.Slots == nil {
		return nil, errors.New("grpcmw: Key, and Guard, Checker or Slots, are required")
	}
	if c.Checker != nil && c.Slots != nil {
		return nil, errors.New("grpcmw: give Checker or Slots, not both")
	}
	if c.Cost == nil {
		c.Cost = func(context.Context, string, any) int64 { return 1 }
	}
	if c.Skip == nil {
		c.Skip = DefaultSkip
	}
	for _, s := range c.Skip {
		if !strings.HasPrefix(s, "/") {
			return nil, fmt.Errorf("grpcmw: Skip %q: expected /pkg.Service/Method or /pkg.Service/", s)
		}
	}
	if c.OnError == nil {
		c.OnError = func(context.Context, string, error) {}
	}
	return &Limiter{c, gate.Gate{Guard: c.Guard, Checker: c.Checker, Slots: c.Slots, RequireKey: c.RequireKey,
		Now: c.Now}}, nil
}

// Unary limits calls.
func (l *Limiter) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		header, slot, err := l.ask(ctx, info.FullMethod, req)
		if len(header) > 0 {
			_ = grpc.SetHeader(ctx, header) // it fails only if there is no transport
		}
		if err != nil {
			return nil, err
		}
		if slot != nil {
			defer l.release(ctx, info.FullMethod, slot)
			ctx = slot.Context()
		}
		return next(ctx, req)
	}
}

// Stream limits how often streams are opened, not what is sent through one.
func (l *Limiter) Stream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		header, slot, err := l.ask(ss.Context(), info.FullMethod, nil)
		if len(header) > 0 {
			_ = ss.SetHeader(header)
		}
		if err != nil {
			return err
		}
		if slot != nil {
			defer l.release(ss.Context(), info.FullMethod, slot)
			ss = held{ss, slot.Context()}
		}
		return next(srv, ss)
	}
}

// held is a stream whose context ends with its slot.
type held struct {
	grpc.ServerStream
	ctx context.Context
}

func (h held) Context() context.Context { return h.ctx }

// release gives a slot back, whether or not the caller is still there.
func (l *Limiter) release(ctx context.Context, method string, slot *client.Slot) {
	ctx = context.WithoutCancel(ctx)
	if err := slot.Release(ctx); err != nil {
		l.config.OnError(ctx, method, err)
	}
}

// ask returns the headers for the caller, and the error that the call ends with. The error is nil if the call passes;
// then there may be a slot.
func (l *Limiter) ask(ctx context.Context, method string, req any) (metadata.MD, *client.Slot, error) {
	for _, s := range l.config.Skip {
		if method == s || strings.HasSuffix(s, "/") && strings.HasPrefix(method, s) {
			return nil, nil, nil
		}
	}
	key, ok := l.config.Key(ctx, method)
	v := l.gate.WithoutKey()
	if ok {
		v = l.gate.Ask(ctx, key, l.config.Cost(ctx, method, req))
	}
	if v.Err != nil {
		l.config.OnError(ctx, method, v.Err)
	}
	md := metadata.MD{}
	for name, values := range v.Header() {
		md.Set(name, values...)
	}
	switch v.Outcome {
	case gate.Pass:
		return md, v.Slot, nil
	case gate.Over:
		return md, nil, overLimit(v.Answer.RetryAfterMs)
	case gate.Gone:
		return md, nil, status.FromContextError(ctx.Err()).Err()
	case gate.Invalid:
		return md, nil, invalid(v.Err)
	case gate.Refused:
		return md, nil, withDetails(codes.Internal, "this service cannot check its limit", "internal")
	}
	return md, nil, withDetails(codes.Unavailable, "it is not known whether this is within its limit", "unavailable")
}

func overLimit(retryMs int64) error {
	if retryMs <= 0 {
		return withDetails(codes.ResourceExhausted, "over the limit", "over-limit")
	}
	return withDetails(codes.ResourceExhausted, fmt.Sprintf("over the limit; it is admitted again in %d ms", retryMs),
		"over-limit",
		&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(retryMs) * time.Millisecond)})
}

// invalid returns an error that does not show the key, because the caller must not see it.
func invalid(err error) error {
	switch {
	case errors.Is(err, gate.ErrNoKey):
		return withDetails(codes.InvalidArgument, "the call has no key", "bad-key")
	case errors.Is(err, api.ErrBadKey):
		return withDetails(codes.InvalidArgument, "the key of the call cannot be counted", "bad-key")
	case errors.Is(err, api.ErrBadCount):
		return withDetails(codes.InvalidArgument, "the cost of the call is out of bounds", "bad-count")
	}
	return withDetails(codes.FailedPrecondition, "the cost of the call is above the limit and can never be admitted",
		"cost-exceeds-limit")
}

func withDetails(code codes.Code, text, reason string, more ...protoadapt.MessageV1) error {
	s := status.New(code, text)
	if d, err := s.WithDetails(append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: api.ErrorDomain,
		Reason: reason}}, more...)...); err == nil {
		s = d
	}
	return s.Err()
}

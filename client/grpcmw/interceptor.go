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
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (got any, err error) {
		err = l.limit(ctx, info.FullMethod, req, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) },
			func(slot *client.Slot) (err error) {
				if slot != nil {
					ctx = slot.Context()
				}
				got, err = next(ctx, req)
				return err
			})
		return got, err
	}
}

// Stream limits how often streams are opened, not what is sent through one.
func (l *Limiter) Stream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return l.limit(ss.Context(), info.FullMethod, nil, ss.SetHeader, func(slot *client.Slot) error {
			if slot != nil {
				ss = held{ss, slot.Context()}
			}
			return next(srv, ss)
		})
	}
}

// held is a stream whose context ends with its slot.
type held struct {
	grpc.ServerStream
	ctx context.Context
}

func (h held) Context() context.Context { return h.ctx }

// limit calls next if the call passes, with its slot if it has one. Otherwise it returns the error that the call ends
// with.
func (l *Limiter) limit(ctx context.Context, method string, req any, setHeader func(metadata.MD) error,
	next func(*client.Slot) error) error {
	for _, s := range l.config.Skip {
		if method == s || strings.HasSuffix(s, "/") && strings.HasPrefix(method, s) {
			return next(nil)
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
	if len(md) > 0 {
		_ = setHeader(md) // it fails only if there is no transport
	}
	switch v.Outcome {
	case gate.Pass:
	case gate.Gone:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return refusal(v)
	}
	if v.Slot != nil {
		defer func() { // even if the caller is gone
			ctx := context.WithoutCancel(ctx)
			if err := v.Slot.Release(ctx); err != nil {
				l.config.OnError(ctx, method, err)
			}
		}()
	}
	return next(v.Slot)
}

// refusals: outcome → the error. None shows the key, because the caller must not see it.
var refusals = map[gate.Outcome]struct {
	code         codes.Code
	reason, text string
}{
	gate.Over:    {codes.ResourceExhausted, "over-limit", ""}, // gate.OverText
	gate.NoKey:   {codes.InvalidArgument, "bad-key", "the call has no key"},
	gate.BadKey:  {codes.InvalidArgument, "bad-key", "the key of the call cannot be counted"},
	gate.BadCost: {codes.InvalidArgument, "bad-count", "the cost of the call is out of bounds"},
	gate.AboveLimit: {codes.FailedPrecondition, "cost-exceeds-limit",
		"the cost of the call is above the limit and can never be admitted"},
	gate.Refused:     {codes.Internal, "internal", "this service cannot check its limit"},
	gate.Unavailable: {codes.Unavailable, "unavailable", "it is not known whether this is within its limit"},
}

func refusal(v gate.Verdict) error {
	r := refusals[v.Outcome]
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: api.ErrorDomain, Reason: r.reason}}
	if v.Outcome == gate.Over {
		r.text = gate.OverText(v.Answer.RetryAfterMs)
		if wait := v.Answer.RetryAfterMs; wait > 0 {
			details = append(details,
				&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(wait) * time.Millisecond)})
		}
	}
	s := status.New(r.code, r.text)
	if d, err := s.WithDetails(details...); err == nil {
		s = d
	}
	return s.Err()
}

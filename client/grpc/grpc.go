package grpc

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	googlegrpc "google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Config: zero values are defaults.
type Config struct {
	// Token returns the bearer token of each call; nil sends none. See client.StaticToken.
	Token func() string
	// TLS secures the connection: roots, client certificates. Nil is plain text.
	TLS *tls.Config
	// Options are added to those of the connection: a dialer, interceptors.
	Options []googlegrpc.DialOption
}

// Client is a Checker over Envoy's rate limit service, which our server speaks. It
// never sends a check twice by itself.
type Client struct {
	token  func() string
	conn   *googlegrpc.ClientConn
	client rls.RateLimitServiceClient
	hide   *strings.Replacer // removes secrets of the target from errors
}

// Names in a request, and the metadata that asks for all that the body of an HTTP answer has.
const (
	rlsDomain  = "streamcounter"
	rlsKey     = "key"
	detailFlag = "streamcounter-detail"
	detailName = "streamcounter"
	// modesName has the modes of the descriptors, separated by commas, if one is not take.
	modesName = "streamcounter-mode"
)

// New makes a Client of the server at target, such as dns:///streamcounter:8082 or 127.0.0.1:8082. It connects when
// it is used.
func New(target string, c Config) (*Client, error) {
	if scheme, _, _ := strings.Cut(strings.ToLower(target), "://"); scheme == "" || scheme == "http" ||
		scheme == "https" {
		return nil, fmt.Errorf("grpc: %s: expected the address of a gRPC server, such as 127.0.0.1:8082",
			api.Shorten(redact.URL(target)))
	}
	creds := insecure.NewCredentials()
	if c.TLS != nil {
		creds = credentials.NewTLS(c.TLS)
	}
	options := append([]googlegrpc.DialOption{
		googlegrpc.WithTransportCredentials(creds),
		googlegrpc.WithStatsHandler(sentWatch{}),
		// A retry policy of a service config could send a check twice.
		googlegrpc.WithDisableServiceConfig(),
		googlegrpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		// By default a server that was away is tried again after up to two minutes.
		googlegrpc.WithConnectParams(googlegrpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		// Timeout also makes the kernel give up a connection on which nothing was acknowledged for that long. The
		// pings themselves are so rare that no server objects.
		googlegrpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: time.Second}),
	}, c.Options...)
	conn, err := googlegrpc.NewClient(target, options...)
	hide := redactor(target)
	if err != nil {
		return nil, fmt.Errorf("grpc: %s: %s", api.Shorten(redact.URL(target)), hide.Replace(err.Error()))
	}
	return &Client{token: c.Token, conn: conn, client: rls.NewRateLimitServiceClient(conn), hide: hide}, nil
}

// Close ends the connection.
func (g *Client) Close() error { return g.conn.Close() }

// Check implements Checker.
func (g *Client) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	req, err := transport.Validate(ctx, req)
	if err != nil {
		return api.CheckAnswer{}, err
	}
	all, err := g.ask(ctx, []api.CheckRequest{req})
	if err != nil {
		return api.CheckAnswer{}, err
	}
	return all.Checks[0], nil
}

// CheckAll implements Checker.
func (g *Client) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	reqs, err := transport.ValidateAll(ctx, reqs)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	return g.ask(ctx, reqs)
}

// CheckEach implements Checker, with a call for each: the service decides the
// descriptors of one call all or nothing.
func (g *Client) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	return transport.EachValid(ctx, reqs, func(reqs []api.CheckRequest) ([]api.Each, error) {
		return transport.InParallel(ctx, reqs, g.Check), nil
	})
}

// Peek implements Checker.
func (g *Client) Peek(ctx context.Context, key string) (api.KeyState, error) {
	if err := api.ValidateKey(key); err != nil {
		return api.KeyState{}, err
	}
	all, err := g.ask(ctx, []api.CheckRequest{{Key: key, Mode: api.ModeLook}})
	if err != nil {
		return api.KeyState{}, err
	}
	a := all.Checks[0]
	switch {
	case a.Note == api.NoRuleNote:
		return api.KeyState{}, fmt.Errorf("%w: key %s", api.ErrNoRule, api.Shorten(key))
	case a.Source == api.SourcePolicy, a.Source == api.SourceLocal: // on_error decided
		return api.KeyState{}, fmt.Errorf("%w: key %s", api.ErrUnavailable, api.Shorten(key))
	}
	state := api.KeyState{Key: key, Rule: a.Rule, Windows: a.Windows, InForce: a.InForce}
	for _, s := range a.Shadow {
		state.Shadow = append(state.Shadow, api.ShadowState{Rule: s.Rule, Windows: s.Windows})
	}
	return state, nil
}

func (g *Client) ask(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	out := &rls.RateLimitRequest{Domain: rlsDomain, Descriptors: make([]*common.RateLimitDescriptor, len(reqs))}
	for i, r := range reqs {
		if len(r.Values) > 0 {
			return api.ChecksAnswer{}, fmt.Errorf("%w: key %s: gRPC carries no values, HTTP does", api.ErrBadRequest,
				api.Shorten(r.Key))
		}
		out.Descriptors[i] = &common.RateLimitDescriptor{
			Entries:    []*common.RateLimitDescriptor_Entry{{Key: rlsKey, Value: r.Key}},
			HitsAddend: wrapperspb.UInt64(uint64(r.Cost)),
		}
	}
	md := appendKey(ctx, []string{detailFlag, "1"})
	if slices.ContainsFunc(reqs, func(r api.CheckRequest) bool { return r.Mode.Or(api.ModeTake) != api.ModeTake }) {
		modes := make([]string, len(reqs))
		for i, r := range reqs {
			modes[i] = string(r.Mode.Or(api.ModeTake))
		}
		md = append(md, modesName, strings.Join(modes, ","))
	}
	bearer, err := transport.Bearer(g.token)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	if bearer != "" {
		md = append(md, "authorization", bearer)
	}
	sent := new(atomic.Bool)
	ctx = context.WithValue(metadata.AppendToOutgoingContext(ctx, md...), sentKey{}, sent)
	resp, err := g.client.ShouldRateLimit(ctx, out)
	if err != nil {
		return api.ChecksAnswer{}, transport.ErrorOf(g.errorOf(ctx, err, sent.Load()), reqs...)
	}
	all, err := answerOf(resp, reqs)
	return transport.Decided(all, transport.ErrorOf(err, reqs...))
}

// errorOf turns a status back into the error that the server meant, or adds to it what may have happened to the
// request.
func (g *Client) errorOf(ctx context.Context, err error, sent bool) error {
	s := status.Convert(err)
	if text := g.hide.Replace(s.Message()); text != s.Message() {
		p := s.Proto()
		p.Message = text
		s = status.FromProto(p)
		err = s.Err()
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == api.ErrorDomain {
			return transport.Named(strings.ReplaceAll(strings.ToLower(info.Reason), "_", "-"), s.Message())
		}
	}
	if gone := pause.Gone(ctx); gone != nil {
		err = fmt.Errorf("%w: %w", gone, err) // a status does not wrap it
	}
	switch {
	case s.Code() == codes.Unauthenticated:
		return fmt.Errorf("%w: %w", api.ErrUnauthenticated, err)
	case s.Code() == codes.PermissionDenied:
		return fmt.Errorf("%w: %w", api.ErrForbidden, err)
	case s.Code() == codes.Unimplemented:
		return fmt.Errorf("%w: %w: is this a streamcounter server?", api.ErrNoAnswer, err)
	case sent:
		return transport.Lost(err)
	}
	return transport.NotSent(err)
}

// sentWatch records in a call's context that its request may have been sent.
type sentWatch struct{}

type sentKey struct{}

func (sentWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentWatch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); ok {
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (sentWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (sentWatch) HandleConn(context.Context, stats.ConnStats)                       {}

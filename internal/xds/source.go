// Package xds takes the limits of Envoy's rate limit service from an xDS server, such as Envoy Gateway: state of the
// world over one aggregated stream. Each response is taken whole (ACK), or without the limits that cannot be counted
// and with the reason (NACK). check/envoy/config decides what the resources mean.
package xds

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	// The client of the xDS project itself, which envoyproxy/ratelimit uses too.
	"github.com/envoyproxy/go-control-plane/pkg/client/sotw/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/windows"
)

// Config of a Source. Server is required.
type Config struct {
	Server   string             // HOST:PORT
	Node     string             // the id that the server has limits for; default "default"
	Metadata map[string]string  // of the node
	Headers  map[string]string  // sent when the stream opens
	TLS      func() *tls.Config // of the next connection; nil: plain text
	// FirstWait and LongestWait are between attempts to connect, doubled each time and
	// varied by a quarter; default 500ms and 10s.
	FirstWait, LongestWait time.Duration
	// MaxBytes of a response; default 32 MiB.
	MaxBytes int
	// Options of the limits.
	Options config.Options
	Log     *slog.Logger // nil: silence
}

// Source follows the limits of a server. It begins without limits, and keeps the last ones while the server is away.
type Source struct {
	*reload.Pushed[*config.Limits]
	config  Config
	once    sync.Once
	arrived chan struct{} // closed when the first limits have been taken

	// Only Run uses these:
	last handled         // the last response
	away map[string]bool // logged reasons why the server is away; empty: it answers
}

// handled is a response, by its contents. If it was refused, it has the reason, and how long to wait before it is
// refused again.
type handled struct {
	resources []string
	err       error
	wait      time.Duration
}

// New does not connect yet; Run does.
func New(c Config) (*Source, error) {
	if c.Server == "" {
		return nil, errors.New("the address of the xDS server is empty: expected HOST:PORT")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Node = cmp.Or(c.Node, "default")
	c.FirstWait, c.LongestWait = cmp.Or(c.FirstWait, 500*time.Millisecond), cmp.Or(c.LongestWait, 10*time.Second)
	c.MaxBytes = cmp.Or(c.MaxBytes, 32<<20)
	none, err := config.FromResources(nil, c.Options)
	if err != nil {
		return nil, err
	}
	s := &Source{Pushed: reload.NewPushed("limits", c.Log, none), config: c, arrived: make(chan struct{})}
	conn, err := s.dial() // connects only when it is used: this checks the address
	if err != nil {
		return nil, fmt.Errorf("xDS server %s: %w", c.Server, err)
	}
	return s, conn.Close()
}

// dial returns a connection for one stream. It uses the current certificates. Run makes a new connection for each try,
// because gRPC retries on a connection that stays open.
func (s *Source) dial() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if s.config.TLS != nil {
		creds = credentials.NewTLS(s.config.TLS())
	}
	return grpc.NewClient(s.config.Server, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.config.MaxBytes)),
		// Pings detect a server that disappears silently. grpc-go's servers refuse more frequent pings.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}))
}

// Limits returns the current limits.
func (s *Source) Limits() *config.Limits { return s.Value() }

// Rules returns the rules of the limits.
func (s *Source) Rules() *windows.Rules { return s.Limits().Rules() }

// Refused returns what of the last resources is not in force; nil: all of it is.
func (s *Source) Refused() error {
	if err := s.Pushed.Refused(); err != nil {
		return err
	}
	return s.Limits().Refused()
}

// Arrived is closed when limits have been taken for the first time.
func (s *Source) Arrived() <-chan struct{} { return s.arrived }

// Ready returns an error until the first limits have been taken, because it is not known before what is limited.
func (s *Source) Ready() error {
	select {
	case <-s.arrived:
		return nil
	default:
		return config.ErrNoLimits
	}
}

// Reload has nothing to do: the server says when something changes.
func (s *Source) Reload() error { return nil }

// Run follows the server until ctx ends.
func (s *Source) Run(ctx context.Context) {
	wait := s.config.FirstWait
	for {
		answered, err := s.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered {
			wait = s.config.FirstWait
		}
		s.logAway(err)
		if !pause.For(ctx, time.Duration(float64(wait)*(0.75+rand.Float64()/2))) {
			return
		}
		wait = min(2*wait, s.config.LongestWait)
	}
}

// maxReasons bounds what the log says while a server is away.
const maxReasons = 20

// logAway logs each reason once. The first reason can be that the server ends the stream, and only a later one says
// why it does not come back. Digits are left out of the comparison, because only our own port differs in them.
func (s *Source) logAway(err error) {
	text := shorten(err.Error())
	reason := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return -1
		}
		return c
	}, text)
	if s.away[reason] || len(s.away) >= maxReasons {
		return
	}
	if s.away == nil {
		s.away = map[string]bool{}
	}
	s.away[reason] = true
	s.config.Log.Warn("the xDS server is away, the limits stay as they are", "server", s.config.Server, "error", text)
}

// follow opens a stream and takes its responses until it ends. Each stream has a client of its own, because versions
// and nonces of one stream mean nothing in the next: the server sends all resources again.
func (s *Source) follow(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(s.config.Headers)))
	defer cancel()
	fields := map[string]*structpb.Value{}
	for name, value := range s.config.Metadata {
		fields[name] = structpb.NewStringValue(value)
	}
	node := &corev3.Node{Id: s.config.Node, Metadata: &structpb.Struct{Fields: fields}}
	client := sotw.NewADSClient(ctx, node, resource.RateLimitConfigType)
	conn, err := s.dial()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	if err := client.InitConnect(conn); err != nil {
		return false, err
	}
	if s.last.err != nil {
		s.last = handled{} // a new stream has its reason at once
	}
	for {
		response, err := client.Fetch()
		if err != nil {
			return answered, err
		}
		if len(s.away) > 0 {
			s.config.Log.Info("the xDS server answers again", "server", s.config.Server)
		}
		answered, s.away = true, nil
		if err = s.answer(ctx, response.Resources); err == nil {
			err = client.Ack()
		} else {
			err = client.Nack(shorten(err.Error()))
		}
		if err != nil {
			return answered, err
		}
	}
}

// answer takes a response, unless it has the same resources as the one before. If that one was refused, this one is
// refused again after a wait: go-control-plane's cache sends a refused response again at once, some thousand times a
// second. During the wait the server has nothing else to send, because it waits for the answer.
func (s *Source) answer(ctx context.Context, response []*anypb.Any) error {
	resources := contents(response)
	switch {
	case !slices.Equal(resources, s.last.resources) || s.Ready() != nil:
		s.last = handled{resources, s.take(response), s.config.FirstWait}
	case s.last.err != nil:
		pause.For(ctx, s.last.wait)
		s.last.wait = min(2*s.last.wait, s.config.LongestWait, maxRefusalWait)
	}
	return s.last.err
}

// maxRefusalWait bounds how late a correction is seen.
const maxRefusalWait = 5 * time.Second

// contents returns the resources of a response as text in one order, because servers send them in any order.
func contents(response []*anypb.Any) (list []string) {
	for _, one := range response {
		list = append(list, one.GetTypeUrl()+string(one.GetValue()))
	}
	slices.Sort(list)
	return list
}

// take puts the limits of a response in force, except those that cannot be counted. For those it returns an error,
// which the server receives in a NACK. If the response cannot be read, the limits before stay in force.
func (s *Source) take(response []*anypb.Any) error {
	list, err := resourcesOf(response)
	if err = s.Take(func() (*config.Limits, error) {
		if err != nil {
			return nil, err
		}
		return config.FromResources(list, s.config.Options)
	}, "resources", len(list)); err != nil {
		return err
	}
	for _, warning := range s.Limits().Warnings() {
		s.config.Log.Warn(warning)
	}
	s.once.Do(func() { close(s.arrived) })
	if err = s.Limits().Refused(); err != nil {
		s.config.Log.Error("some limits are refused, the others are in force", "error", err)
	}
	return err
}

// resourcesOf decodes a response, and sorts its resources by name and domain.
func resourcesOf(response []*anypb.Any) ([]*rlsconf.RateLimitConfig, error) {
	list := make([]*rlsconf.RateLimitConfig, len(response))
	for i, one := range response {
		list[i] = &rlsconf.RateLimitConfig{}
		if !one.MessageIs(list[i]) {
			return nil, fmt.Errorf("resources[%d] is a %q, expected a %q", i, one.MessageName(),
				list[i].ProtoReflect().Descriptor().FullName())
		}
		if err := one.UnmarshalTo(list[i]); err != nil {
			return nil, fmt.Errorf("resources[%d]: %w", i, err)
		}
	}
	// Servers send the resources in any order, but the order of a domain's patterns must not change without a reason.
	slices.SortStableFunc(list, func(a, b *rlsconf.RateLimitConfig) int {
		return cmp.Or(strings.Compare(a.GetName(), b.GetName()), strings.Compare(a.GetDomain(), b.GetDomain()))
	})
	return list, nil
}

// shorten keeps what a server logs of a refusal within bounds.
func shorten(text string) string {
	const most = 2000
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

package alerts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/subscription"
	"github.com/streamcounter/streamcounter/internal/tracing"
)

// PublisherConfig: zero values are defaults.
type PublisherConfig struct {
	Prefix string // required
	// AckTimeout is how long a PubAck may take before the message is sent again, and any other answer of JetStream
	// before the request is repeated; default 2s.
	AckTimeout time.Duration
	// Replicas of the streams, if they are created; default 1.
	Replicas int
	// OnOutcome receives each publish's outcome: acked, duplicate, failed, or
	// unexpected_duplicate, a transition that JetStream dropped although it was not sent
	// before. May be nil.
	OnOutcome func(outcome string)
	// Tracer creates a span for each transition that comes with a trace; nil: none.
	Tracer trace.Tracer
	Log    *slog.Logger
}

// Publisher stores transitions in JetStream. Several goroutines may use it, but
// the transitions of one subject must come from one at a time.
type Publisher struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	config PublisherConfig

	throttle atomic.Pointer[jetstream.Stream] // of decisions; nil until it was read
	logged   sync.Map                         // differences of streams that were logged
}

// NewPublisher uses the caller's connection, which should reconnect forever (MaxReconnects: -1). The streams are
// created at the first publish: NATS may start later than we do.
func NewPublisher(nc *nats.Conn, c PublisherConfig) (*Publisher, error) {
	c.AckTimeout = cmp.Or(c.AckTimeout, 2*time.Second)
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.OnOutcome == nil {
		c.OnOutcome = func(string) {}
	}
	js, err := open(nc, c.Prefix, c.AckTimeout)
	if err != nil {
		return nil, err
	}
	return &Publisher{nc: nc, js: js, config: c}, nil
}

// open returns JetStream over a caller's connection, for the streams of a prefix.
func open(nc *nats.Conn, prefix string, timeout time.Duration) (jetstream.JetStream, error) {
	if nc == nil {
		return nil, errors.New("alerts: a NATS connection is required")
	}
	if err := subscription.ValidateToken(prefix); err != nil {
		return nil, fmt.Errorf("alerts: %w", err)
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(timeout), jetstream.WithDefaultTimeout(timeout))
	if err != nil {
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	return js, nil
}

// Ensure creates the streams if they are missing and logs once each difference of a stream that exists. It fails with
// ErrOldServer if the server cannot keep them.
func (p *Publisher) Ensure(ctx context.Context) error {
	if err := checkServer(p.nc); err != nil {
		return err
	}
	differences, err := EnsureStreams(ctx, p.js, Streams(p.config.Prefix, p.config.Replicas))
	for _, d := range differences {
		if _, logged := p.logged.LoadOrStore(d, true); logged {
			continue
		}
		p.config.Log.Warn("a JetStream stream differs from what this version would create; it is left unchanged",
			"difference", d)
	}
	return err
}

// Publish stores the transitions and returns nil when every one has its PubAck. The next decision of a subject, and the
// next alert of a key, is sent only after the ack of the one before. A message without an ack is sent again with the
// same ID, for as long as ctx allows: nothing is sent when ctx.Err is not nil. The first `resent` transitions may have
// been sent before; JetStream should not know the ID of any other. If a transition is not valid, Publish sends none and
// returns an error that wraps api.ErrBadTransition.
func (p *Publisher) Publish(ctx context.Context, transitions []api.Transition, resent int) error {
	pending := make([]*nats.Msg, 0, len(transitions))
	sent := map[string]bool{} // the IDs that JetStream may know
	spans := &spans{open: map[*nats.Msg]tracing.Span{}}
	defer spans.end()
	for i, t := range transitions {
		m, err := message(p.config.Prefix, t)
		if err != nil {
			return err
		}
		spans.start(ctx, p.config, t, m)
		pending = append(pending, m)
		if i < resent {
			sent[m.Header.Get(jetstream.MsgIDHeader)] = true
		}
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if ctx.Err() != nil && len(pending) > 0 { // it ended before anything was sent
			return fmt.Errorf("%d of %d transitions not published: %w", len(pending), len(transitions), ctx.Err())
		}
		left, err := p.sendFirst(ctx, pending, sent)
		spans.keep(left, err)
		if len(left) == 0 {
			return nil
		}
		if len(left) < len(pending) {
			wait = 50 * time.Millisecond
		}
		pending = left
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d transitions not published: %w", len(left), len(transitions),
				errors.Join(ctx.Err(), err))
		}
		if err == nil {
			continue
		}
		level := slog.LevelWarn
		if !p.nc.IsConnected() { // the lost connection is logged once, elsewhere
			level = slog.LevelDebug
		}
		p.config.Log.Log(ctx, level, "publishing failed, trying again", "transitions", len(left), "error", err)
		if mayBeMissing(err) {
			if err := p.Ensure(ctx); err != nil {
				p.config.Log.Warn("creating the JetStream streams failed, trying again", "error", err)
			}
		}
		pause.For(ctx, wait)
	}
}

// attempt is one attempt to send a message; err: it could not be sent.
type attempt struct {
	ack    jetstream.PubAckFuture
	err    error
	resent bool
}

// wait returns the PubAck. It returns a PubAck that has come even if ctx has ended.
func (f *attempt) wait(ctx context.Context) (*jetstream.PubAck, error) {
	if f.err != nil {
		return nil, f.err
	}
	select {
	case ack := <-f.ack.Ok():
		return ack, nil
	case err := <-f.ack.Err():
		return nil, err
	default:
	}
	select {
	case ack := <-f.ack.Ok():
		return ack, nil
	case err := <-f.ack.Err():
		return nil, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// sendFirst sends the first decision of each subject and the first alert of each key, all at once, and waits for their
// acks. It returns the messages without an ack, in order, and the last error. It adds the IDs of the messages that it
// sends to sent.
func (p *Publisher) sendFirst(ctx context.Context, pending []*nats.Msg, sent map[string]bool) (left []*nats.Msg,
	last error) {
	err := checkServer(p.nc)
	if !p.nc.IsConnected() {
		// The library would keep the messages, and later send each of them as often as it was tried.
		err = nats.ErrDisconnected
	}
	if err != nil {
		p.config.OnOutcome("failed")
		return pending, fmt.Errorf("publishing %d transitions: %w", len(pending), err)
	}
	attempts := make([]*attempt, len(pending))      // index in pending → its attempt; nil: it must wait
	inFlight := make(map[string]bool, len(pending)) // by orderOf
	for i, m := range pending {
		order := p.orderOf(m.Subject)
		if inFlight[order] {
			continue
		}
		inFlight[order] = true
		id := m.Header.Get(jetstream.MsgIDHeader)
		f := &attempt{resent: sent[id]}
		sent[id] = true
		// Pass a copy, because the library sets the reply subject of the message that it gets.
		f.ack, f.err = p.js.PublishMsgAsync(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data},
			jetstream.WithRetryAttempts(0))
		attempts[i] = f
	}
	within, cancel := context.WithTimeoutCause(ctx, p.config.AckTimeout, nats.ErrTimeout)
	defer cancel()
	for i, f := range attempts {
		if f == nil {
			left = append(left, pending[i])
			continue
		}
		ack, err := f.wait(within)
		if err == nil {
			p.acked(ctx, ack, pending[i], f.resent)
			continue
		}
		p.config.OnOutcome("failed")
		last = fmt.Errorf("publishing to %s: %w", pending[i].Subject, err)
		left = append(left, pending[i])
	}
	return left, last
}

// orderOf names the messages that must be stored in the order in which they were written: those of a subject, or all
// alerts of a key, whatever their levels.
func (p *Publisher) orderOf(subject string) string {
	if strings.HasPrefix(subject, p.config.Prefix+".alert.") {
		return subject[strings.LastIndexByte(subject, '.')+1:]
	}
	return subject
}

// acked records that a message is stored. If JetStream drops a message as a copy at the first attempt, the message is
// lost, unless Redis failed over and the transition was written again. If ctx has ended (a relay has lost its lock),
// another relay may have sent it: a process that was frozen still sends what is in its buffers.
func (p *Publisher) acked(ctx context.Context, ack *jetstream.PubAck, m *nats.Msg, resent bool) {
	switch {
	case !ack.Duplicate:
		p.config.OnOutcome("acked")
	case resent || ctx.Err() != nil:
		p.config.OnOutcome("duplicate")
	default:
		p.config.OnOutcome("unexpected_duplicate")
		p.config.Log.Error(
			"JetStream dropped a transition as a copy that was not sent before: subscribers may not have received it",
			"subject", m.Subject, "id", m.Header.Get(jetstream.MsgIDHeader), "stream", ack.Stream, "sequence",
			ack.Sequence)
	}
}

// mayBeMissing reports whether err can mean that no stream takes the subject. The server sends no such answer if any
// client has subscribed to the subject without JetStream, so a timeout counts too.
func mayBeMissing(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
		errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrAsyncPublishTimeout)
}

package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// consumerName is that of a sink's durable consumer of SC_ALERTS.
func consumerName(sink string) string { return "sink-" + sink }

// runner delivers for one sink, whenever this process has its lease.
type runner struct {
	sink   *Sink
	group  *Group
	config Config
	state  state
	log    *slog.Logger

	standing *standing // nil but for Alertmanager
}

func newRunner(g *Group, s *Sink) *runner {
	r := &runner{sink: s, group: g, config: g.config, state: state{g.js, g.config.Prefix, s.Name},
		log: g.config.Log.With("sink", s.Name)}
	if s.Type == Alertmanager {
		r.standing = &standing{runner: r}
	}
	return r
}

// run holds the lease as often as it can, and delivers while it does, until ctx ends.
func (r *runner) run(ctx context.Context) {
	var last string
	for ctx.Err() == nil {
		err := r.hold(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errHeld) {
			err = nil // another process delivers: this one stands by
		}
		if err != nil && err.Error() != last {
			r.log.Warn("the sink cannot read alerts, trying again", "error", err)
		}
		last = ""
		if err != nil {
			last = err.Error()
		}
		pause.For(ctx, leaseEvery)
	}
}

// hold takes the lease and delivers until it is lost, or ctx ends.
func (r *runner) hold(ctx context.Context) error {
	if err := ensure(ctx, r.group.js, r.config.Prefix, r.config.Replicas); err != nil {
		return err
	}
	l, err := r.state.lease(ctx, r.config.Name)
	if err != nil {
		return err
	}
	defer l.end()
	if err = r.deliver(ctx, l); err == nil {
		err = context.Cause(l.ctx)
	}
	return err
}

// consumer gives the sink's durable consumer, and up to which sequence of the stream all is delivered; back says
// that the stream itself is another, or an older state of it. The consumer is made anew, rather than taken as it
// stands: what the process before has not acknowledged would come after AckWait, and so after later alerts of its
// key. What that has delivered beyond comes again.
func (r *runner) consumer(ctx context.Context, l *lease) (c jetstream.Consumer, floor uint64, back bool, err error) {
	_, stream := alerts.StreamNames(r.config.Prefix)
	js, name := r.group.js, consumerName(r.sink.Name)
	fail := func(err error) (jetstream.Consumer, uint64, bool, error) {
		return nil, 0, false, fmt.Errorf("the consumer of %s: %w", stream, err)
	}
	config := jetstream.ConsumerConfig{
		Durable: name, FilterSubject: r.config.Prefix + ".alert.>", DeliverPolicy: jetstream.DeliverNewPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: r.config.AckWait, MaxAckPending: maxHeld, MaxDeliver: -1,
		InactiveThreshold: 8 * 24 * time.Hour, // of a sink that is gone: by then its alerts are, too
	}
	create := func() error {
		c, err = js.CreateOrUpdateConsumer(ctx, stream, config)
		return err
	}
	from := func(floor uint64) {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, floor+1
	}
	before, err := js.Consumer(ctx, stream, name)
	if err == nil {
		floor = before.CachedInfo().AckFloor.Stream
		// A crash between the two finds the position there.
		if err := r.state.setPosition(ctx, l, floor); err != nil {
			return fail(err)
		}
		if err := js.DeleteConsumer(ctx, stream, name); err != nil {
			return fail(err)
		}
		from(floor)
		if err := create(); err != nil {
			return fail(err)
		}
		return c, floor, false, nil
	}
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fail(err)
	}
	known, err := r.state.position(ctx)
	if err != nil {
		return fail(err)
	}
	if known != nil {
		// What was delivered is older than the position. If the first alert since then has a sequence below it, the
		// stream has begun again, or was restored.
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &known.at
	}
	if err := create(); err != nil {
		return fail(err)
	}
	floor = c.CachedInfo().AckFloor.Stream
	if known != nil && floor >= known.sequence {
		if err := js.DeleteConsumer(ctx, stream, name); err != nil {
			return fail(err)
		}
		config.OptStartTime = nil
		from(known.sequence)
		if err := create(); err != nil {
			return fail(err)
		}
		return c, known.sequence, false, nil
	}
	if err := r.state.setPosition(ctx, l, floor); err != nil {
		return fail(err)
	}
	return c, floor, known != nil, nil
}

// deliver reads alerts and sends them until ctx ends or the lease is lost.
func (r *runner) deliver(ctx context.Context, l *lease) error {
	_, stream := alerts.StreamNames(r.config.Prefix)
	work, stop := context.WithCancel(l.ctx)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	consumer, floor, back, err := r.consumer(work, l)
	if err != nil {
		return err
	}
	if r.standing != nil {
		if err := r.standing.load(work, l); err != nil {
			return err
		}
	}
	s := newSession(work, r, l, floor)
	defer s.end()
	defer stop() // before the end, which waits for what work ends
	if back {
		s.log.Error("the stream of alerts was made anew or restored: alerts may be missing or come again", "stream",
			stream, "from", floor+1)
		s.missed(work)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(maxHeld/2), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return fmt.Errorf("reading %s: %w", stream, err)
	}
	defer context.AfterFunc(work, messages.Stop)()
	defer messages.Stop()
	for {
		m, err := messages.Next()
		switch {
		case work.Err() != nil || errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return nil
		case errors.Is(err, jetstream.ErrNoHeartbeat): // it asks again by itself, also a consumer that is gone
			if _, err = consumer.Info(work); !errors.Is(err, jetstream.ErrConsumerNotFound) &&
				!errors.Is(err, jetstream.ErrStreamNotFound) {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", stream, err)
		}
		s.take(work, m)
	}
}

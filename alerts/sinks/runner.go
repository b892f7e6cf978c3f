package sinks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// consumerName returns the name of a sink's durable consumer of SC_ALERTS.
func consumerName(sink string) string { return "sink-" + sink }

// runner delivers for one sink, whenever this process has its lock.
type runner struct {
	sink   *Sink
	group  *Group
	config Config
	state  state
	log    *slog.Logger

	active *active   // nil except for Alertmanager
	other  otherLock // the lock of another process
	holder string    // the process that was last logged as the holder
}

func newRunner(g *Group, s *Sink) *runner {
	r := &runner{sink: s, group: g, config: g.config, state: state{g.js, g.config.Prefix, s.Name},
		log: g.config.Log.With("sink", s.Name)}
	if s.Type == Alertmanager {
		r.active = &active{runner: r}
	}
	return r
}

// run takes the lock as often as it can, and delivers while it holds it, until ctx ends.
func (r *runner) run(ctx context.Context) {
	var last string
	for ctx.Err() == nil {
		err := r.hold(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errHeld) {
			err = nil // another process delivers: this one waits
		}
		if err != nil && !r.config.NATS.IsConnected() {
			err = cmp.Or(r.config.NATS.LastError(), nats.ErrDisconnected) // err may be about a buffer
		}
		if err != nil && err.Error() != last {
			r.log.Warn("the sink cannot read alerts, trying again", "error", err)
		}
		last = ""
		if err != nil {
			last = err.Error()
		}
		pause.For(ctx, lockEvery)
	}
}

// hold takes the lock and delivers until it is lost, or ctx ends.
func (r *runner) hold(ctx context.Context) error {
	l, err := r.take(ctx)
	if err != nil {
		return err
	}
	defer l.end(r.config.lastRequest())
	delivering := r.config.Metrics.delivering.WithLabelValues(r.sink.Name)
	delivering.Set(1)
	defer delivering.Set(0)
	if err = r.deliver(ctx, l); err == nil {
		err = context.Cause(l.ctx)
	}
	return err
}

// take takes the lock, and records the outcome in the log and the metric.
func (r *runner) take(ctx context.Context) (*lock, error) {
	outcome := "failed"
	defer func() { r.config.Metrics.locks.WithLabelValues(r.sink.Name, outcome).Inc() }()
	if err := ensure(ctx, r.group.js, r.config.Prefix, r.config.Replicas); err != nil {
		return nil, err
	}
	l, err := r.state.lock(ctx, r.config.Name, &r.other)
	switch {
	case errors.Is(err, errHeld):
		outcome = "refused"
		if r.holder != r.other.holder {
			r.holder = r.other.holder
			r.log.Info("another process delivers for the sink, this one waits", "by", r.holder)
		}
	case err != nil:
	case r.other.takenOver:
		outcome = "taken_over"
		r.log.Warn("took over the sink: NATS had kept its expired lock", "from",
			r.other.holder, "after", time.Since(r.other.since).Round(time.Second).String())
	default:
		outcome = "taken"
	}
	if err == nil {
		r.other, r.holder = otherLock{}, ""
	}
	return l, err
}

// start is where a process begins to deliver. It makes the durable consumer of a sink, so that it starts at the right
// alert.
type start struct {
	*runner
	lock         *lock
	stream, name string
	want         jetstream.ConsumerConfig

	consumer jetstream.Consumer
	ackFloor uint64 // up to this sequence of the stream, all alerts are delivered or gone
	removed  uint64 // undelivered alerts before ackFloor that were removed from the stream
	reset    bool   // the stream was recreated, or restored to an older state
}

// start recreates the sink's durable consumer. It does not use the existing one: alerts that the previous process has
// not acknowledged would come only after AckWait, and so after later alerts of their key. Alerts that the previous
// process delivered after the first unacknowledged one come again.
func (r *runner) start(ctx context.Context, l *lock) (*start, error) {
	_, stream := alerts.StreamNames(r.config.Prefix)
	at := &start{runner: r, lock: l, stream: stream, name: consumerName(r.sink.Name)}
	at.want = r.consumerConfig(at.name)
	known, err := r.state.position(ctx)
	var before jetstream.Consumer
	if err == nil {
		before, err = r.group.js.Consumer(ctx, stream, at.name)
		switch {
		case err == nil:
			err = at.after(ctx, before, known)
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			err = at.first(ctx, known)
		case errors.Is(err, jetstream.ErrStreamNotFound) && known == nil:
			// The sink's next alert is the one that creates the stream, which may have more before the next attempt.
			err = errors.Join(err, r.state.setPosition(ctx, l, 0))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the consumer of %s: %w", stream, err)
	}
	return at, nil
}

// consumerConfig is the configuration for a sink without a position, which begins with the next alert.
func (r *runner) consumerConfig(name string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: name, FilterSubject: r.config.Prefix + ".alert.>", DeliverPolicy: jetstream.DeliverNewPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: r.config.AckWait, MaxAckPending: maxHeld, MaxDeliver: -1,
		InactiveThreshold: 8 * 24 * time.Hour, // for a sink that was removed: its alerts are gone by then, too
	}
}

func (at *start) create(ctx context.Context) (err error) {
	at.consumer, err = at.group.js.CreateOrUpdateConsumer(ctx, at.stream, at.want)
	if err == nil {
		at.ackFloor = ackFloorOf(at.consumer)
	}
	return err
}

// recreate makes the consumer again. It starts after a sequence of the stream.
func (at *start) recreate(ctx context.Context, after uint64) error {
	if err := at.group.js.DeleteConsumer(ctx, at.stream, at.name); err != nil {
		return err
	}
	at.want.DeliverPolicy, at.want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after+1
	at.want.OptStartTime = nil
	return at.create(ctx)
}

// after starts after the alerts that the consumer `before` has acknowledged.
func (at *start) after(ctx context.Context, before jetstream.Consumer, known *position) error {
	acked := ackFloorOf(before)
	// Store the position first: after a crash between the two calls, the next process finds it.
	if err := at.state.setPosition(ctx, at.lock, acked); err != nil {
		return err
	}
	if known == nil || known.sequence >= acked {
		return at.recreate(ctx, acked)
	}
	// A purge moves the acknowledged position to the end of the purge. The first message that a new consumer
	// finds shows how many messages after the known position are gone.
	if err := at.recreate(ctx, known.sequence); err != nil {
		return err
	}
	at.removed = at.ackFloor - known.sequence
	if at.ackFloor >= acked {
		return nil
	}
	return at.recreate(ctx, acked)
}

// first starts at the known position of a sink without a consumer, or with the next alert of a new sink.
func (at *start) first(ctx context.Context, known *position) error {
	if known != nil {
		// Alerts that were delivered are older than the stored position. If the first alert since then has a sequence
		// below the position, the stream was recreated or restored.
		at.want.DeliverPolicy, at.want.OptStartTime = jetstream.DeliverByStartTimePolicy, &known.at
	}
	if err := at.create(ctx); err != nil {
		return err
	}
	from := at.ackFloor
	if known != nil && from >= known.sequence {
		from = known.sequence
	} else {
		at.reset = known != nil
		if err := at.state.setPosition(ctx, at.lock, from); err != nil {
			return err
		}
	}
	if err := at.recreate(ctx, from); err != nil { // now its configuration has the sequence (ackFloorOf)
		return err
	}
	at.removed = at.ackFloor - from
	return nil
}

// ackFloorOf returns the sequence of the stream up to which all is acknowledged. If nothing is pending, that is what
// was delivered last. In a cluster, the AckFloor is 0 until the first message is acknowledged: until then, it is where
// the consumer starts.
func ackFloorOf(c jetstream.Consumer) uint64 {
	info := c.CachedInfo()
	if info.NumAckPending == 0 {
		return info.Delivered.Stream
	}
	return max(info.AckFloor.Stream, max(info.Config.OptStartSeq, 1)-1)
}

// deliver reads alerts and sends them until ctx ends or the lock is lost.
func (r *runner) deliver(ctx context.Context, l *lock) error {
	work, stop := context.WithCancel(l.ctx)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	at, err := r.start(work, l)
	if err != nil {
		return err
	}
	if r.active != nil {
		if err := r.active.load(work, l); err != nil {
			return err
		}
	}
	s := newSession(work, at)
	defer s.end()
	defer stop() // before s.end, which waits for goroutines that end with work
	if at.removed > 0 {
		s.lost(work, at.removed)
	}
	if at.reset {
		s.log.Error("the stream of alerts was recreated or restored: alerts may be missing or repeated", "stream",
			at.stream, "from", at.ackFloor+1)
		s.missed(work)
	}
	messages, err := at.consumer.Messages(jetstream.PullMaxMessages(maxHeld/2), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return fmt.Errorf("reading %s: %w", at.stream, err)
	}
	defer context.AfterFunc(work, messages.Stop)()
	defer messages.Stop()
	for {
		m, err := messages.Next()
		switch {
		case work.Err() != nil || errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return nil
		case errors.Is(err, jetstream.ErrNoHeartbeat): // the library asks again, even if the consumer is gone
			if _, err = at.consumer.Info(work); !errors.Is(err, jetstream.ErrConsumerNotFound) &&
				!errors.Is(err, jetstream.ErrStreamNotFound) {
				continue
			}
		}
		if err == nil {
			err = s.take(work, m)
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", at.stream, err)
		}
	}
}

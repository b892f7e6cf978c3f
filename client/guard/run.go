package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
)

const (
	// requestTimeout bounds a request to JetStream.
	requestTimeout = 2 * time.Second
	// If no messages come, a request for messages ends after fetchFor, which shows that NATS works. The server gets
	// nine tenths of that time.
	fetchFor  = 2 * time.Second
	heartbeat = 500 * time.Millisecond
	fetchMost = 1000 // messages per request
	// forgetConsumer is the time after which NATS deletes a consumer that nobody reads from.
	forgetConsumer = 30 * time.Second
	// tickEvery renews the clock and sweeps one shard: all of them in some 5 s.
	tickEvery = 20 * time.Millisecond
	// retryFirst and retryMost bound the wait between attempts to subscribe.
	retryFirst, retryMost = 50 * time.Millisecond, time.Second
)

// askFirst and askMost bound the wait before a new snapshot is asked for after a
// malformed message, in ms. It doubles for as long as the snapshots hold such messages.
const askFirst, askMost = 100, 60_000

var errMalformed = errors.New("a stored message is not a decision")

// Run receives decisions until ctx ends, and then returns nil. It returns an error only when the connection was
// closed for good. Call it once.
func (g *Guard) Run(ctx context.Context) error {
	if !g.running.CompareAndSwap(false, true) {
		return errors.New("guard: the guard runs already, or has run")
	}
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	status := g.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer g.nc.RemoveStatusListener(status)
	if g.changes != nil {
		parts.Go(func() { g.callBack(ctx) })
	}
	messages := make(chan delivery)
	parts.Go(func() { g.subscribe(ctx, status, messages) })
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	defer g.clock.Store(0)
	g.clock.Store(g.config.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			g.clock.Store(g.config.Now())
			g.sweep()
			g.askWhenDue()
		case d := <-messages:
			if d.err != nil {
				return d.err
			}
			g.take(d)
		}
	}
}

// delivery is what the subscription passes to the one goroutine that writes.
type delivery struct {
	list  []jetstream.Msg
	begin bool  // a new snapshot begins
	whole bool  // nothing is left to deliver
	err   error // the connection is closed for good
}

func (g *Guard) take(d delivery) {
	if d.begin {
		g.snapshot++
		g.whole, g.suspect = false, false
	}
	for _, m := range d.list {
		g.apply(m.Data())
	}
	if d.whole && !g.whole {
		g.snapshotIsIn()
	}
}

// malformed records a message that is not a decision. Another program wrote it, and it may be in the place of a
// decision. So the held decisions are kept, and a new snapshot is asked for.
func (g *Guard) malformed() {
	g.counts.malformed.Add(1)
	g.suspect = true
	if g.askAt == 0 {
		g.askWait = min(max(2*g.askWait, askFirst), askMost)
		g.askAt = g.now() + g.askWait
	}
}

func (g *Guard) askWhenDue() {
	if g.askAt == 0 || g.now() < g.askAt {
		return
	}
	g.askAt = 0
	select {
	case g.askAgain <- struct{}{}:
	default: // it has been asked for
	}
}

func (g *Guard) callBack(ctx context.Context) {
	for {
		select {
		case c := <-g.changes:
			g.config.OnChange(c)
		case <-ctx.Done():
			return
		}
	}
}

// subscribe reads one session after the other. A session ends when a message could have been missed; the next one
// begins with a snapshot.
func (g *Guard) subscribe(ctx context.Context, status <-chan nats.Status, out chan<- delivery) {
	send := func(d delivery) bool {
		select {
		case out <- d:
			return true
		case <-ctx.Done():
			return false
		}
	}
	wait, last := retryFirst, ""
	for ctx.Err() == nil {
		if g.nc.IsClosed() {
			send(delivery{err: fmt.Errorf("guard: %w: the guard hears nothing any more", nats.ErrConnectionClosed)})
			return
		}
		if g.nc.IsConnected() {
			began := time.Now()
			err := g.session(ctx, status, send)
			if ctx.Err() != nil {
				return
			}
			if text := fmt.Sprint(err); text != last { // otherwise it would log this every second
				g.config.Log.Warn("the guard subscribes again", "prefix", g.config.Prefix, "error", err)
				last = text
			}
			if time.Since(began) > retryMost {
				wait, last = retryFirst, ""
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-status: // connected again, or closed
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
		}
		wait = min(2*wait, retryMost)
	}
}

// session reads the snapshot and the messages after it through its own consumer, until a message could have been
// missed. The error says why.
func (g *Guard) session(ctx context.Context, status <-chan nats.Status, send func(delivery) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		for {
			select {
			case s := <-status:
				if s != nats.CONNECTED {
					cancel(fmt.Errorf("NATS: %v", s))
				}
			case <-g.askAgain:
				cancel(errMalformed)
			case <-ctx.Done():
				return
			}
		}
	})
	consumer, err := g.js.CreateConsumer(ctx, g.stream(), jetstream.ConsumerConfig{
		FilterSubjects: g.subjects(), DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:     jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: forgetConsumer,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", g.stream(), errors.Join(err, context.Cause(ctx)))
	}
	defer g.drop(consumer.CachedInfo().Name)
	g.hear()
	if !send(delivery{begin: true, whole: consumer.CachedInfo().NumPending == 0}) {
		return ctx.Err()
	}
	for next := uint64(1); ; {
		n, err := g.fetch(ctx, consumer, next, send)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		next += n
	}
}

// fetch passes on the messages of one request. Each message has a number, so a gap is noticed.
func (g *Guard) fetch(ctx context.Context, consumer jetstream.Consumer, next uint64,
	send func(delivery) bool) (n uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	batch, err := consumer.Fetch(fetchMost, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(heartbeat))
	if err != nil {
		return 0, fmt.Errorf("asking for decisions: %w", err)
	}
	for first := range batch.Messages() {
		d := delivery{list: []jetstream.Msg{first}}
		for more := true; more; { // messages that are already there are sent together
			select {
			case m, ok := <-batch.Messages():
				if more = ok; ok {
					d.list = append(d.list, m)
				}
			default:
				more = false
			}
		}
		for _, m := range d.list {
			meta, err := m.Metadata()
			if err != nil {
				return n, fmt.Errorf("a message without its number: %w", err)
			}
			if meta.Sequence.Consumer != next+n {
				return n, fmt.Errorf("message %d came where %d was expected", meta.Sequence.Consumer, next+n)
			}
			n++
			d.whole = meta.NumPending == 0
		}
		g.hear()
		if !send(d) {
			return n, ctx.Err()
		}
	}
	if err := batch.Error(); err != nil {
		return n, fmt.Errorf("waiting for decisions: %w", err)
	}
	g.hear()
	if n == 0 && !send(delivery{whole: true}) { // what was pending has expired in the meantime
		return n, ctx.Err()
	}
	return n, nil
}

// drop deletes a consumer that nobody will read from. NATS would delete it later anyway.
func (g *Guard) drop(consumer string) {
	if !g.nc.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout/4)
	defer cancel()
	if err := g.js.DeleteConsumer(ctx, g.stream(), consumer); err != nil {
		g.config.Log.Debug("deleting the guard's consumer", "error", err)
	}
}

// stream returns the name of the stream, as in alerts.StreamNames.
func (g *Guard) stream() string { return strings.ToUpper(g.config.Prefix) + "_THROTTLE" }

func (g *Guard) subjects() []string {
	if len(g.config.Rules) == 0 {
		return []string{g.config.Prefix + ".throttle.>"}
	}
	// A block by an operator holds under every rule.
	list := []string{g.config.Prefix + ".throttle." + api.OverrideRule + ".>"}
	for _, rule := range g.config.Rules {
		list = append(list, g.config.Prefix+".throttle."+rule+".>")
	}
	return list
}

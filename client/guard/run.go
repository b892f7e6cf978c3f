package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/subscription"
)

// tickEvery renews the clock and sweeps one shard: all of them in some 5 s.
const tickEvery = 20 * time.Millisecond

// firstResyncWait and maxResyncWait bound the wait before a new snapshot is asked for after a
// malformed message, in ms. It doubles for as long as the snapshots hold such messages.
const firstResyncWait, maxResyncWait = 100, 60_000

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
	if g.changes != nil {
		parts.Go(func() { g.callBack(ctx) })
	}
	messages, ended := make(chan subscription.Delivery), make(chan error, 1)
	parts.Go(func() { ended <- g.subscribe(ctx, messages) })
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
			g.resyncWhenDue()
		case d := <-messages:
			g.take(d)
		case err := <-ended:
			return err
		}
	}
}

func (g *Guard) take(d subscription.Delivery) {
	if d.Begin {
		g.snapshot++
		g.complete, g.malformedSeen = false, false
	}
	for _, m := range d.Messages {
		g.apply(m.Subject(), m.Data())
	}
	if d.Whole && !g.complete {
		g.finishSnapshot()
	}
}

// malformed records a message that is not a decision. Another program wrote it, and it may be in the place of a
// decision. So the held decisions are kept, and a new snapshot is asked for.
func (g *Guard) malformed() {
	g.counts.malformed.Add(1)
	g.malformedSeen = true
	if g.resyncAt == 0 {
		g.resyncWait = min(max(2*g.resyncWait, firstResyncWait), maxResyncWait)
		g.resyncAt = g.now() + g.resyncWait
	}
}

func (g *Guard) resyncWhenDue() {
	if g.resyncAt == 0 || g.now() < g.resyncAt {
		return
	}
	g.resyncAt = 0
	select {
	case g.resync <- errMalformed:
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

// subscribe reads one session after the other. Each begins with a snapshot.
func (g *Guard) subscribe(ctx context.Context, out chan<- subscription.Delivery) error {
	err := subscription.Run(ctx, subscription.Config{NC: g.nc, Stream: g.stream(), Subjects: g.subjects(),
		From: jetstream.DeliverLastPerSubjectPolicy, Snapshots: true, Again: g.resync,
		Failed: func(err error) error {
			g.config.Log.Warn("the guard subscribes again", "prefix", g.config.Prefix, "error", err)
			return nil
		}}, func(d subscription.Delivery) {
		g.recordAnswer()
		select {
		case out <- d:
		case <-ctx.Done():
		}
	})
	if err != nil {
		return fmt.Errorf("guard: %w: the guard receives nothing any more", err)
	}
	return nil
}

// stream returns the name of the stream, as in alerts.StreamNames.
func (g *Guard) stream() string { return strings.ToUpper(g.config.Prefix) + "_THROTTLE" }

func (g *Guard) subjects() []string {
	if len(g.config.Rules) == 0 {
		return []string{g.config.Prefix + ".throttle.>"}
	}
	var list []string // NATS refuses a subject that is given twice
	for _, rule := range withBlocks(g.config.Rules) {
		if subject := g.config.Prefix + ".throttle." + rule + ".>"; !slices.Contains(list, subject) {
			list = append(list, subject)
		}
	}
	return list
}

package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/entry"
)

// ProducerConfig configures a Producer. The zero value is ready to use.
type ProducerConfig struct {
	// MaxPending bounds the events in the producer, queued and being sent; default 100,000.
	MaxPending int
	// MaxBatch bounds the events of one flush; default 5,000.
	MaxBatch int
	// Linger is how long an event may wait for others; default 0: a flush starts
	// as soon as the flush before it has ended, so that batches grow under load and an
	// idle producer sends at once.
	Linger time.Duration
	// FailWhenFull makes Append return api.ErrQueueFull instead of waiting for room.
	FailWhenFull bool
	// FlushTimeout bounds one flush; default 10s. Events without a reply by then are unknown.
	FlushTimeout time.Duration
	// OnFlush is called with each flush's outcome, one call at a time, before the flush's
	// events make room for others. It can call Again with refused events. It must not call
	// Append, Flush or Close, which could wait for its end. It may be nil.
	OnFlush func(Outcome)
}

// Producer collects events and appends them in the background. It merges the events
// of one key within a flush. It sends events with an ID again until they are stored
// or the flush's time is over. It never sends other events twice: OnFlush receives
// events with an unknown outcome, and the caller decides.
type Producer struct {
	log    *Log
	config ProducerConfig

	mu      sync.Mutex
	queue   []api.Event
	sending int
	taken   uint64        // events ever taken
	sent    uint64        // how many of them have been flushed; they are flushed in order
	waiting int           // how many calls of Flush wait
	room    chan struct{} // closed and replaced when a flush has made room
	closed  bool
	until   context.Context // ends every flush that begins: Close sets its own
	cancel  func()          // ends the last flush that began; nil before the first
	again   int             // events of the last flush that were queued again

	pause  func(ctx context.Context, attempt int) bool // between attempts; tests set another
	wake   chan struct{}                               // one slot: there is something to do
	done   chan struct{}                               // closed when run has ended
	failed error                                       // the first error since the last Flush
}

// NewProducer starts a producer; Close ends it.
func NewProducer(log *Log, config ProducerConfig) (*Producer, error) {
	config.MaxPending = cmp.Or(config.MaxPending, 100_000)
	config.MaxBatch = cmp.Or(config.MaxBatch, 5_000)
	config.FlushTimeout = cmp.Or(config.FlushTimeout, 10*time.Second)
	if log == nil {
		return nil, errors.New("producer: a Log is required")
	}
	if config.MaxPending < 1 || config.MaxBatch < 1 || config.Linger < 0 || config.FlushTimeout < 0 {
		return nil, fmt.Errorf("producer: negative bound in %+v", config)
	}
	config.MaxBatch = min(config.MaxBatch, config.MaxPending) // a full producer must not linger
	p := &Producer{
		log: log, config: config, pause: pauseBetween, until: context.Background(),
		room: make(chan struct{}), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go p.run()
	return p, nil
}

// Append takes one event. If the producer is full, it waits for room until ctx ends,
// or returns api.ErrQueueFull, as configured. If it returns nil, the event is queued,
// but not yet stored: OnFlush and Flush report that.
func (p *Producer) Append(ctx context.Context, e api.Event) error {
	if err := e.Validate(); err != nil {
		return err
	}
	entry.DropBadTrace(&e)
	e.Values = maps.Clone(e.Values) // callers use one map for many events
	for {
		room, err := p.take(e)
		if err != nil || room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("waiting for room for an event: %w", ctx.Err())
		}
	}
}

// take queues an event. If there is no room for it, it returns a channel that is closed when there may be, or an error
// if the caller may not wait.
func (p *Producer) take(e api.Event) (room <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("producer: %w", api.ErrClosed)
	}
	switch {
	case len(p.queue)+p.sending < p.config.MaxPending:
		p.queue = append(p.queue, e)
		p.taken++
		p.notify()
		return nil, nil
	case p.config.FailWhenFull:
		return nil, fmt.Errorf("producer holds %d events: %w", p.config.MaxPending, api.ErrQueueFull)
	}
	return p.room, nil
}

// Again queues events again that OnFlush has received as refused. It never waits, because the
// places of the flush's events are kept until OnFlush returns. For more events than these, it
// queues none and returns api.ErrQueueFull.
func (p *Producer) Again(refused ...api.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("producer: %w", api.ErrClosed)
	case p.again+len(refused) > p.sending:
		return fmt.Errorf("more than the %d events of the flush: %w", p.sending, api.ErrQueueFull)
	}
	p.again += len(refused)
	p.queue = append(p.queue, refused...)
	p.taken += uint64(len(refused))
	p.notify()
	return nil
}

// Flush waits until all events that were taken before have been sent, and returns
// the first error since the last Flush. OnFlush receives all errors.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting++
	defer func() { p.waiting-- }()
	for before := p.taken; p.sent < before; {
		room := p.room
		p.mu.Unlock()
		p.notify()
		var err error
		select {
		case <-room:
		case <-ctx.Done():
			err = fmt.Errorf("flushing: %w", ctx.Err())
		}
		p.mu.Lock()
		if err != nil {
			return err
		}
	}
	return p.takeFailure()
}

// Close takes no more events, sends the queued events, and returns like Flush. If ctx ends
// first, it sends no more and waits for no reply: OnFlush receives the events that are being
// sent as unknown, and those that are still queued as refused. When Close returns, OnFlush has
// received all events. It can be called twice.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed, p.until = true, ctx
	p.mu.Unlock()
	p.notify()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.endFlush()
		<-p.done
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.takeFailure()
}

// endFlush ends the flush that is under way. Flushes that begin after Close have the context of Close.
func (p *Producer) endFlush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cancel != nil {
		p.cancel()
	}
}

// takeFailure returns the first error since it was called last; call it with the lock held.
func (p *Producer) takeFailure() error {
	err := p.failed
	p.failed = nil
	return err
}

func (p *Producer) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Producer) run() {
	defer close(p.done)
	for {
		p.mu.Lock()
		held, closed, waiting := len(p.queue), p.closed, p.waiting
		p.mu.Unlock()
		if held == 0 {
			if closed {
				return
			}
			<-p.wake
			continue
		}
		if p.config.Linger > 0 && held < p.config.MaxBatch && !closed && waiting == 0 {
			p.linger()
		}
		p.flush()
	}
}

// linger waits for more events: until the time is over, a batch is full, or a caller
// waits for a flush.
func (p *Producer) linger() {
	timer := time.NewTimer(p.config.Linger)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-p.wake:
			p.mu.Lock()
			enough := len(p.queue) >= p.config.MaxBatch || p.closed || p.waiting > 0
			p.mu.Unlock()
			if enough {
				return
			}
		}
	}
}

func (p *Producer) flush() {
	p.mu.Lock()
	n := min(len(p.queue), p.config.MaxBatch)
	batch := p.queue[:n:n]
	p.queue = p.queue[n:]
	if len(p.queue) == 0 {
		p.queue = nil // so that the array is freed after this batch
	}
	p.sending, p.again = n, 0
	ctx, cancel := context.WithTimeout(p.until, p.config.FlushTimeout)
	p.cancel = cancel
	p.mu.Unlock()

	out := p.log.appendUntil(ctx, merge(batch), p.pause)
	cancel()
	if p.config.OnFlush != nil {
		p.config.OnFlush(out)
	}

	p.mu.Lock()
	p.sending = 0
	p.sent += uint64(n)
	if p.failed == nil {
		p.failed = out.Err
	}
	close(p.room)
	p.room = make(chan struct{})
	p.mu.Unlock()
}

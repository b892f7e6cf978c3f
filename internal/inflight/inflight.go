// Package inflight bounds the memory that bodies of HTTP requests and answers take in one process while
// they are under way. A bound per request does not do that: a hundred bodies that never end hold a
// hundred times as much. Read read.go next.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var (
	// ErrFull: others hold all the memory for bodies; the caller may try again.
	ErrFull = errors.New("too many requests are under way")
	// ErrSlow: the body or answer was given up because its peer was slow and others needed the memory.
	ErrSlow = errors.New("the request was given up, as it was slow and too many others are under way")
	// ErrLate: the body was not there when the connection's time for a request was over.
	ErrLate = errors.New("the body did not arrive in time")
)

// How long bodies may take, and wait for memory, while it is short.
const (
	Grace = 2 * time.Second // a body that is younger is never given up
	Wait  = 4 * time.Second // for memory; longer than Grace, so that slow bodies make room first
)

// Pool is memory that many bodies share. Its methods may be called from any goroutine.
type Pool struct {
	most        int64 // bytes
	grace, wait time.Duration

	mu     sync.Mutex
	held   int64
	ending int64              // what bodies that were given up still hold
	flows  map[*flow]struct{} // those that wait for their peer
	freed  chan struct{}      // closed when bytes come free, and then replaced
}

// flow is a body or an answer under way. All fields are under the pool's mutex.
type flow struct {
	held    int64
	began   time.Time
	giveUp  func() // ends a read or a write that waits for the peer
	givenUp bool
}

// NewPool makes a pool of so many bytes.
func NewPool(most int64) *Pool {
	return &Pool{most: most, grace: Grace, wait: Wait, flows: map[*flow]struct{}{}, freed: make(chan struct{})}
}

// Held returns how many bytes are in use.
func (p *Pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// begin adds a flow, which giveUp can end from another goroutine until peerDone.
func (p *Pool) begin(giveUp func()) *flow {
	f := &flow{began: time.Now(), giveUp: giveUp}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows[f] = struct{}{}
	return f
}

// peerDone records that f waits for its peer no more. It returns false if f was given up before.
func (p *Pool) peerDone(f *flow) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flows, f)
	return !f.givenUp
}

// free gives back what f holds.
func (p *Pool) free(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.flows, f)
	p.held -= f.held
	if f.givenUp {
		p.ending -= f.held
	}
	f.held = 0
	close(p.freed)
	p.freed = make(chan struct{})
}

// take gets n bytes more for f. While there are not enough, it waits, and the oldest flows are given up.
func (p *Pool) take(ctx context.Context, f *flow, n int64) error {
	if freed, err := p.tryTake(f, n); freed == nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.wait, ErrFull)
	defer cancel()
	look := time.NewTicker(p.grace / 8) // flows grow older than Grace
	defer look.Stop()
	for {
		freed, err := p.tryTake(f, n)
		if freed == nil {
			return err
		}
		select {
		case <-freed:
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d bytes are held", context.Cause(ctx), p.Held())
		}
	}
}

// tryTake takes n bytes. If there are not enough, it gives up the oldest flow, and returns a channel that is closed
// when bytes come free.
func (p *Pool) tryTake(f *flow, n int64) (freed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case f.givenUp:
		return nil, ErrSlow
	case p.held+n <= p.most:
		p.held += n
		f.held += n
		return nil, nil
	case f.held+n > p.most: // it could wait for ever
		return nil, ErrFull
	case p.held-p.ending+n > p.most:
		p.giveUpOldest()
	}
	if f.givenUp {
		return nil, ErrSlow
	}
	return p.freed, nil
}

// giveUpOldest ends the flow that has waited for its peer for longest, if that is longer than grace. Flows are chosen
// by their age, because a peer that sends steadily is done before.
func (p *Pool) giveUpOldest() {
	var oldest *flow
	for f := range p.flows {
		if !f.givenUp && f.held > 0 && (oldest == nil || f.began.Before(oldest.began)) {
			oldest = f
		}
	}
	if oldest == nil || time.Since(oldest.began) < p.grace {
		return
	}
	oldest.givenUp = true
	p.ending += oldest.held
	oldest.giveUp()
}

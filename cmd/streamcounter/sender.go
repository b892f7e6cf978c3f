package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/stream"
)

// A sender counts what its producer stores. It sends refused events again until Redis stores them. It does that
// within OnFlush, so that events stay in order: the producer fills up, and reading waits.
type sender struct {
	log      *stream.Log
	client   redis.UniversalClient // of log
	dog      watchdog
	again    context.Context // when it ends, refused events are not sent again
	messages io.Writer
	sum      appendSummary
	state    senderState
	failed   bool // an event is not stored, or perhaps not
}

// senderState is what the newest outcome says. A sender reports each change of it.
type senderState int

const (
	stateStored  senderState = iota
	stateWaiting             // refused events are sent again
	stateLost                // events are not stored, or perhaps not
)

func (s *sender) flushed(out stream.Outcome) {
	s.report(out)
	for wait := firstWait; s.willResend(out) && pause.For(s.again, wait); wait = nextWait(wait) {
		next := s.log.Append(s.dog.ctx, out.Refused)
		s.report(next)
		out = resent(out, next)
	}
	s.sum.Events += out.Appended
	s.sum.Entries += out.Entries
	s.sum.Refused += out.RefusedEvents
	s.sum.Unknown += out.UnknownEvents
	s.failed = s.failed || out.Err != nil || out.UnknownEvents > 0
	if out.UnknownEvents > 0 {
		s.awaitAnswer()
	}
}

// awaitAnswer waits until Redis answers: if it hangs, each further batch would be sent and perhaps stored.
func (s *sender) awaitAnswer() {
	for wait := firstWait; s.client.Ping(s.dog.ctx).Err() != nil && pause.For(s.again, wait); wait = nextWait(wait) {
	}
}

// firstWait is the time before the first attempt to send again. It doubles, up to a second.
const firstWait = 50 * time.Millisecond

func nextWait(wait time.Duration) time.Duration { return min(2*wait, time.Second) }

// willResend reports whether the refused events will be sent again: Redis may store them later.
func (s *sender) willResend(out stream.Outcome) bool {
	return len(out.Refused) > 0 && !redisclient.IsRefusal(out.Err) && !errors.Is(out.Err, stream.ErrMismatch) &&
		s.again.Err() == nil
}

// resent returns the outcome of events whose refused ones were sent again. A refused event can be merged from several,
// and next counts it once. The merged events get the worst outcome in next: none is counted as stored that may not be.
func resent(out, next stream.Outcome) stream.Outcome {
	merged := out.RefusedEvents - len(out.Refused)
	switch {
	case len(next.Refused) > 0:
		next.RefusedEvents += merged
	case len(next.Unknown) > 0:
		next.UnknownEvents += merged
	default:
		next.Appended += merged
	}
	next.Appended += out.Appended
	next.Entries += out.Entries
	next.UnknownEvents += out.UnknownEvents
	return next
}

// report prints when events begin to wait, when some are lost, and when Redis stores events again.
func (s *sender) report(out stream.Outcome) {
	if out.Appended > 0 {
		s.dog.feed()
	}
	before := s.state
	switch {
	case s.willResend(out):
		s.state = stateWaiting
	case out.Err != nil:
		s.state = stateLost
	default:
		s.state = stateStored
	}
	switch {
	case s.state == before:
	case s.state == stateWaiting:
		fmt.Fprintf(s.messages, "warning: %v; events wait until Redis stores them\n", out.Err)
	case s.state == stateLost:
		fmt.Fprintf(s.messages, "warning: %d events are not stored, %d perhaps stored: %v\n", out.RefusedEvents,
			out.UnknownEvents, out.Err)
	default:
		fmt.Fprintln(s.messages, "Redis stores events again")
	}
}

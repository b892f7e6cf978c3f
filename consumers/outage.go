package consumers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/replyguard"
)

// outages logs each outage once when it begins and once when it ends. In an outage Redis does not answer, or refuses
// work for one reason. All steps of the worker share it, and each step is tried again until it succeeds. It is safe
// to use from several goroutines.
type outages struct {
	log   *slog.Logger
	after func(time.Duration, func()) // calls a function later; time.AfterFunc except in tests

	mu   sync.Mutex
	open map[string]*outage // reason → what it stops
}

type outage struct {
	since time.Time
	steps map[string]bool // steps that have failed and have not succeeded since
	last  time.Time       // when the last of them succeeded
}

// quietFor is how long all steps must have succeeded: a step that hung may still fail because of an outage that is
// over.
const quietFor = longestWait

func newOutages(log *slog.Logger) *outages {
	after := func(d time.Duration, f func()) { time.AfterFunc(d, f) }
	return &outages{log: log, after: after, open: map[string]*outage{}}
}

// partitionError is the error of one of several partitions.
type partitionError struct {
	partition int
	error
}

func (e partitionError) Unwrap() error { return e.error }

// note records the outcome of a step for a partition, or for the first of several partitions.
func (o *outages) note(step string, partition int, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	key, reason := fmt.Sprintf("%s, partition %d", step, partition), ""
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := (partitionError{}); errors.As(err, &one) {
		partition = one.partition
	}
	if err != nil {
		reason = reasonOf(step, err)
		one := o.open[reason]
		if one == nil {
			one = &outage{since: time.Now(), steps: map[string]bool{}}
			o.open[reason] = one
			text := "Redis does not answer: events, releases and decisions wait until it does"
			if reason != noAnswer {
				text = step + " failed, trying again"
			}
			o.log.Error(text, "step", step, "partition", partition, "error", err)
		}
		one.steps[key] = true
	}
	for r, one := range o.open {
		if r == reason || !one.steps[key] {
			continue
		}
		if delete(one.steps, key); len(one.steps) == 0 {
			one.last = time.Now()
			o.after(quietFor, func() { o.end(r, one) })
		}
	}
}

// end closes an outage, if no step has failed since.
func (o *outages) end(reason string, one *outage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open[reason] != one || len(one.steps) > 0 {
		return
	}
	delete(o.open, reason)
	text := "Redis answers again: work goes on"
	if reason != noAnswer {
		text = "a failure is over"
	}
	o.log.Warn(text, "took", one.last.Sub(one.since).Round(time.Millisecond).String(), "reason", reason)
}

const noAnswer = "no answer"

// reasonOf returns the reason that distinguishes one outage from another: no answer, the first word of an answer that
// all steps get (OOM, READONLY), or the name of the one step that is refused, or whose reply is too large.
func reasonOf(step string, err error) string {
	if errors.Is(err, replyguard.ErrTooLarge) || redisclient.IsRefusal(err) {
		return step
	}
	switch word := redisclient.Word(err); word {
	case "", "LOADING", "BUSY", "UNKILLABLE", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN":
		return noAnswer
	default:
		return word
	}
}

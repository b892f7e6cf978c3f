package check

import (
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/time/rate"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/windows"
)

// outage logs once that on_error decides checks because Redis does not answer, and once that this has ended. An outage
// begins when the first breaker of the process opens. With too few checks for that, it begins outageAfter a check
// failed, if Redis has answered none since then and does not answer probe either. It ends when all breakers are closed
// and Redis has answered. Safe to use from several goroutines.
type outage struct {
	log   *slog.Logger
	lines *rate.Limiter // bounds log lines about checks that Redis refuses, while it answers others
	rules func() *windows.Rules
	probe func(counters.Request)      // sends Redis such a request, and calls redisAnswered if it answers
	after func(time.Duration, func()) // calls a function later; time.AfterFunc except in tests

	failing atomic.Bool // decided is not empty; read without mu after each answer of Redis
	mu      sync.Mutex
	open    map[int]bool // shards whose breaker is not closed
	begun   bool         // the beginning has been logged
	failure int          // number of the last failure that followed an answer of Redis
	since   time.Time
	why     error                   // of the last failure
	last    counters.Request        // a request of the last check that on_error decided
	decided map[windows.OnError]int // policy → checks, one per key
}

// outageAfter is longer than a check may take, so that one slow answer is no outage.
const outageAfter = time.Second

func newOutage(log *slog.Logger, rules func() *windows.Rules) *outage {
	return &outage{log: log, lines: rate.NewLimiter(rate.Every(time.Minute), 10), rules: rules,
		after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }, open: map[int]bool{},
		decided: map[windows.OnError]int{}}
}

// decidedByPolicy counts checks that on_error decided because of an error, one per request. A refusal, such as
// WRONGTYPE, need not be an outage, so it is logged: ten at once, then one a minute.
func (o *outage) decidedByPolicy(policy windows.OnError, requests []counters.Request, why error) {
	if redisclient.IsRefusal(why) && o.lines.Allow() {
		o.log.Error("Redis refuses a check: on_error decides it", "key", api.Shorten(requests[0].Key), "error", why)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.why, o.last = why, requests[0]
	if len(o.decided) == 0 {
		if len(o.open) == 0 {
			o.since = time.Now()
		}
		o.failure++
		o.watch(o.failure)
	}
	o.decided[policy] += len(requests)
	o.failing.Store(true)
}

// watch probes Redis outageAfter a failure, because perhaps no other check comes, and again until Redis answers. If
// Redis does not answer the first probe, the outage begins.
func (o *outage) watch(failure int) {
	o.after(outageAfter, func() {
		if last, unanswered := o.lastRequest(failure); unanswered {
			o.probe(last)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.unansweredSince(failure) {
			o.begin()
			o.watch(failure)
		}
	})
}

// lastRequest returns the last request that on_error decided, and whether Redis has answered nothing since a failure.
func (o *outage) lastRequest(failure int) (counters.Request, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.unansweredSince(failure)
}

func (o *outage) unansweredSince(failure int) bool { return failure == o.failure && len(o.decided) > 0 }

// redisAnswered records that Redis answered. If no breaker is open, this ends the outage, if there is one.
func (o *outage) redisAnswered() {
	if !o.failing.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.open) == 0 {
		o.end()
	}
}

// changed records the new state of a shard's breaker, and the last failure of the shard.
func (o *outage) changed(shard int, to gobreaker.State, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case to == gobreaker.StateOpen:
		o.why = why
		if len(o.decided) == 0 && len(o.open) == 0 {
			o.since = time.Now()
		}
		o.open[shard] = true
		o.begin()
	case to == gobreaker.StateClosed && o.open[shard]:
		delete(o.open, shard)
		if len(o.open) == 0 {
			o.end()
		}
	}
}

// now returns the time since which on_error decides, and how many checks it decided. The time is zero if on_error
// does not decide.
func (o *outage) now() (since time.Time, checks map[windows.OnError]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.begun {
		return time.Time{}, nil
	}
	return o.since, maps.Clone(o.decided)
}

func (o *outage) begin() {
	if o.begun {
		return
	}
	o.begun = true
	live := map[windows.OnError]int{}
	for _, r := range o.rules().List() {
		if !r.Shadow {
			live[r.WithoutRedis()]++
		}
	}
	o.log.Error("Redis decides no checks: on_error does until Redis can. Rules with allow enforce no limit, "+
		"rules with deny answer 503, rules with local count in this process alone", "error", o.why,
		"rules_allow", live[windows.OnErrorAllow], "rules_deny", live[windows.OnErrorDeny], "rules_local",
		live[windows.OnErrorLocal])
}

func (o *outage) end() {
	if o.begun {
		o.log.Warn("Redis answers again: limits are enforced",
			"took", time.Since(o.since).Round(time.Millisecond).String(),
			"checks_allow", o.decided[windows.OnErrorAllow], "checks_deny", o.decided[windows.OnErrorDeny],
			"checks_local", o.decided[windows.OnErrorLocal])
	}
	o.begun, o.last = false, counters.Request{}
	clear(o.decided)
	o.failing.Store(false)
}

package check

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/windows"
)

// outage tells the log, once, that on_error decides checks because Redis does not
// answer, and when that has ended. It begins when the first breaker of the process
// opens and ends when all have closed again. Safe to use from several goroutines.
type outage struct {
	log   *slog.Logger
	rules func() *windows.Rules

	failing atomic.Bool // decided is not empty: what a check asks that Redis has answered
	mu      sync.Mutex
	open    map[int]bool // shards whose breaker is not closed
	since   time.Time
	decided map[windows.OnError]int // policy → checks, one per key
}

func newOutage(log *slog.Logger, rules func() *windows.Rules) *outage {
	return &outage{log: log, rules: rules, open: map[int]bool{}, decided: map[windows.OnError]int{}}
}

// byPolicy counts checks that on_error decided.
func (o *outage) byPolicy(policy windows.OnError, checks int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.decided) == 0 && len(o.open) == 0 {
		o.since = time.Now()
	}
	o.decided[policy] += checks
	o.failing.Store(true)
}

// byRedis says that Redis answered: what failed before was no outage, where no breaker is open.
func (o *outage) byRedis() {
	if !o.failing.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.open) == 0 {
		o.forget()
	}
}

func (o *outage) forget() {
	clear(o.decided)
	o.failing.Store(false)
}

// changed follows the breaker of a shard.
func (o *outage) changed(shard int, to gobreaker.State) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch before := len(o.open); {
	case to == gobreaker.StateOpen:
		o.open[shard] = true
		if before == 0 {
			o.begin()
		}
	case to == gobreaker.StateClosed && o.open[shard]:
		delete(o.open, shard)
		if len(o.open) == 0 {
			o.end()
		}
	}
}

func (o *outage) begin() {
	if len(o.decided) == 0 {
		o.since = time.Now()
	}
	live := map[windows.OnError]int{}
	for _, r := range o.rules().List() {
		if !r.Shadow {
			live[r.OnError]++
		}
	}
	o.log.Error("Redis does not answer: on_error decides checks until it does. Rules with allow enforce no limit, "+
		"rules with deny answer 503, rules with local count in this process alone",
		"rules_allow", live[windows.OnErrorAllow], "rules_deny", live[windows.OnErrorDeny], "rules_local",
		live[windows.OnErrorLocal])
}

func (o *outage) end() {
	o.log.Warn("Redis answers again: limits are enforced", "took", time.Since(o.since).Round(time.Millisecond).String(),
		"checks_allow", o.decided[windows.OnErrorAllow], "checks_deny", o.decided[windows.OnErrorDeny],
		"checks_local", o.decided[windows.OnErrorLocal])
	o.forget()
}

package activity

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/stream"
)

// Bounds of what a process records and publishes.
const (
	maxRules   = 500   // rules above this number are not recorded
	listedKeys = 50    // published keys of a rule and minute, while there are few rules
	listedAll  = 5_000 // of all rules
	every      = time.Second
	expires    = 10 * time.Second // without a new report a process is no longer counted
	period     = time.Minute
)

// Config of a Recorder. Redis, Keys and Process are required to publish.
type Config struct {
	Redis redis.UniversalClient
	Keys  *stream.Keys
	// Process is this process's name, unique among all of the prefix, and Command what it does: serve, work, dev.
	Process, Command string
	Now              func() time.Time // default time.Now
	Log              *slog.Logger
}

// Recorder records what this process does. Its methods may be called from any goroutine; a nil
// Recorder records nothing.
type Recorder struct {
	config Config
	rules  atomic.Pointer[map[string]*rule] // never changed in place
	mu     sync.Mutex                       // held while rules is replaced

	throttled atomic.Pointer[map[string]int64]
}

// rule is what is recorded of one rule.
type rule struct {
	mu          sync.Mutex
	counts      Counts // Throttled is not recorded here
	minute      int64  // of now, since 1970
	now, before *sketch
}

// NewRecorder makes a Recorder that records at once; Run publishes.
func NewRecorder(c Config) *Recorder {
	if c.Now == nil {
		c.Now = time.Now
	}
	c.Log = cmp.Or(c.Log, slog.Default())
	r := &Recorder{config: c}
	r.rules.Store(&map[string]*rule{})
	return r
}

// Checks records answers to checks of one key, and the units that all of them asked for.
func (r *Recorder) Checks(name, key string, answers, units int64, allowed bool) {
	if r == nil {
		return
	}
	if one := r.rule(name); one != nil {
		one.mu.Lock()
		defer one.mu.Unlock()
		if allowed {
			one.counts.Allowed += answers
		} else {
			one.counts.Denied += answers
		}
		one.now.add(key, units)
	}
}

// Events records events of one key that were folded.
func (r *Recorder) Events(name, key string, events, units int64) {
	if r == nil {
		return
	}
	if one := r.rule(name); one != nil {
		one.mu.Lock()
		defer one.mu.Unlock()
		one.counts.Events += events
		one.counts.Units += units
		one.now.add(key, units)
	}
}

// Throttled records how many keys each rule throttles, in the partitions that this process works on.
func (r *Recorder) Throttled(byRule map[string]int64) {
	if r != nil {
		r.throttled.Store(&byRule)
	}
}

// rule returns the rule with a name; nil if there are too many rules.
func (r *Recorder) rule(name string) *rule {
	if one := (*r.rules.Load())[name]; one != nil {
		return one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := *r.rules.Load()
	if one := known[name]; one != nil || len(known) >= maxRules {
		return one
	}
	more := maps.Clone(known)
	more[name] = &rule{now: newSketch(), before: newSketch(), minute: r.minute()}
	r.rules.Store(&more)
	return more[name]
}

func (r *Recorder) minute() int64 { return r.config.Now().UnixMilli() / period.Milliseconds() }

// Run publishes until ctx ends, and then removes what it published.
func (r *Recorder) Run(ctx context.Context) {
	failing := false
	for {
		within, cancel := context.WithTimeout(ctx, every)
		err := r.Publish(within)
		cancel()
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			if failing = failed; failed {
				level := slog.LevelDebug // other parts report an outage
				if redisclient.IsRefusal(err) || redis.HasErrorPrefix(err, "NOPERM") {
					level = slog.LevelWarn
				}
				r.config.Log.Log(ctx, level,
					"publishing this process's activity failed: the page and /v1/top lack its part", "error", err)
			}
		}
		if !pause.For(ctx, every) {
			break
		}
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.config.Redis.Unlink(within, r.key()).Err() // it expires in any case
}

func (r *Recorder) key() string { return r.config.Keys.Activity(r.config.Process) }

// Publish writes what this process has recorded, for Gather.
func (r *Recorder) Publish(ctx context.Context) error {
	text, err := json.Marshal(r.report())
	if err != nil {
		return err
	}
	return r.config.Redis.Set(ctx, r.key(), text, expires).Err()
}

// report is what a process publishes.
type report struct {
	Command string                 `json:"command"`
	AtMs    int64                  `json:"at"` // by its own clock
	Rules   map[string]*ruleReport `json:"rules"`
}

type ruleReport struct {
	Counts
	Minutes []minuteCount `json:"top,omitempty"`
}

// minuteCount is the busiest keys of one minute, by the process's clock.
type minuteCount struct {
	FromMs   int64   `json:"from"`
	Total    int64   `json:"total"`
	Beyond   int64   `json:"beyond,omitempty"`   // by how much the units of a listed key may be more
	Unlisted int64   `json:"unlisted,omitempty"` // what a key that is not listed may have
	Keys     []count `json:"keys"`
}

func (r *Recorder) report() report {
	known := *r.rules.Load()
	out := report{Command: r.config.Command, AtMs: r.config.Now().UnixMilli(),
		Rules: make(map[string]*ruleReport, len(known))}
	n := min(listedKeys, max(listedAll/max(2*len(known), 1), 1))
	minute := r.minute()
	for name, one := range known {
		out.Rules[name] = one.report(minute, n)
	}
	if len(known) >= maxRules {
		r.forgetUnused(out.Rules)
	}
	if throttled := r.throttled.Load(); throttled != nil {
		for name, n := range *throttled {
			if out.Rules[name] == nil {
				out.Rules[name] = &ruleReport{}
			}
			out.Rules[name].Throttled = n
		}
	}
	return out
}

// forgetUnused makes room: it removes the rules of which nothing was recorded in this minute and the one before.
func (r *Recorder) forgetUnused(reports map[string]*ruleReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := maps.Clone(*r.rules.Load())
	maps.DeleteFunc(used, func(name string, _ *rule) bool {
		return reports[name] != nil && len(reports[name].Minutes) == 0
	})
	r.rules.Store(&used)
}

func (r *rule) report(minute int64, n int) *ruleReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case minute == r.minute+1:
		r.before, r.now, r.minute = r.now, newSketch(), minute
	case minute != r.minute:
		r.before, r.now, r.minute = newSketch(), newSketch(), minute
	}
	out := &ruleReport{Counts: r.counts}
	for i, s := range []*sketch{r.now, r.before} {
		if s.total > 0 {
			m := minuteCount{FromMs: (r.minute - int64(i)) * period.Milliseconds(), Total: s.total}
			m.Keys, m.Beyond, m.Unlisted = s.list(n)
			out.Minutes = append(out.Minutes, m)
		}
	}
	return out
}

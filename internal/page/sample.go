package page

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// Partition is the state of one partition.
type Partition struct {
	Partition int   `json:"partition"`
	LagMs     int64 `json:"lag_ms"` // age of the oldest event that no worker has read
	Pending   int64 `json:"pending"`
	Outbox    int64 `json:"outbox"`
	Dead      int64 `json:"dead"`
}

// Rule is a rule, with a text for people.
type Rule struct {
	Name   string `json:"name"`
	Match  string `json:"match"`
	Shadow bool   `json:"shadow,omitempty"`
	Says   string `json:"says"`
}

// Health is what this process knows about the servers that it needs.
type Health struct {
	RedisMs float64 `json:"redis_ms"` // time that a PING took; -1: there was no answer
	NATS    string  `json:"nats"`     // connected or away; empty: this process has none
	// OnError is set while Redis does not answer and on_error decides the checks of this process.
	OnError *OnError `json:"on_error,omitempty"`
	// Latency of the calls for checks that this process answered within the last minute; nil: there were none.
	Latency *Latency `json:"latency,omitempty"`
}

// OnError is how many checks on_error decided, by its policies.
type OnError struct {
	SinceMs int64 `json:"since_ms"`
	Allow   int   `json:"allow"`
	Deny    int   `json:"deny"`
	Local   int   `json:"local"`
}

// Latency is in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// sample is the state at one second.
type sample struct {
	AtMs      int64           `json:"at_ms"`
	Processes []process       `json:"processes"`
	Rates     map[string]rate `json:"rates"` // of each rule
	Throttled int64           `json:"throttled"`
	Shadow    int64           `json:"shadow"` // keys that shadow rules would throttle
	api.Overview
	Top        []api.TopKeys `json:"top"`
	Partitions []Partition   `json:"partitions"`
	Rules      []Rule        `json:"rules"`
	Health     Health        `json:"health"`
	// Failed lists what could not be read the last time. Its fields are as they were read before.
	Failed []string `json:"failed,omitempty"`
}

type process struct {
	Name    string `json:"name"`
	Command string `json:"command"`
}

// rate is per second. Allowed and Denied of a shadow rule are what it would have decided.
type rate struct {
	Allowed float64 `json:"allowed"`
	Denied  float64 `json:"denied"`
	Events  float64 `json:"events"`
	Units   float64 `json:"units"`
}

// point is one point of a plot. All values are per second, except what is throttled.
type point struct {
	AtMs         int64   `json:"t"`
	Allowed      float64 `json:"a"`
	Denied       float64 `json:"d"`
	ShadowDenied float64 `json:"s"` // that shadow rules would have denied
	Events       float64 `json:"e"`
	Throttled    int64   `json:"k"`
	Shadow       int64   `json:"l"` // that shadow rules would throttle
}

func (s *sample) point() point {
	p := point{AtMs: s.AtMs, Throttled: s.Throttled, Shadow: s.Shadow}
	p.add(s.Rates, shadows(s.Rules))
	return p
}

func (p *point) add(rates map[string]rate, shadows map[string]bool) {
	for name, r := range rates {
		if shadows[name] { // it counts checks that another rule decided, or none
			p.ShadowDenied += r.Denied
		} else {
			p.Allowed, p.Denied = p.Allowed+r.Allowed, p.Denied+r.Denied
		}
		p.Events += r.Events
	}
}

// shadows returns which rules are shadow rules.
func shadows(rules []Rule) map[string]bool {
	out := map[string]bool{}
	for _, r := range rules {
		out[r.Name] = r.Shadow
	}
	return out
}

// sampler makes samples, and keeps what it needs of earlier ones. One goroutine uses it.
type sampler struct {
	last  sample
	meter meter
	// The overview reads all records, so it is read again only after ten times as long as it took.
	overviewAt, partitionsAt time.Time
	failed                   [len(parts)]bool // the last time
	latencies                [2]check.Latencies
	latenciesAt              time.Time // of latencies[1]
}

// parts are what a sample is made of.
var parts = [...]string{"what processes do", "who is throttled", "partitions"}

// maxReportAge is the age above which a report of a process says nothing about the present rates.
const maxReportAge = 5 * time.Second

func (s *sampler) next(ctx context.Context, now time.Time, c Config) *sample {
	out := s.last
	out.AtMs, out.Failed, out.Rules = now.UnixMilli(), nil, c.Rules()
	out.Health = c.Health(ctx)
	out.Health.Latency = s.latency(now, c)
	all, err := c.Activity(ctx)
	if s.failed[0] = err != nil; err == nil {
		out.Processes, out.Rates = []process{}, s.meter.rates(all, maxReportAge)
		for _, p := range all.Processes {
			out.Processes = append(out.Processes, process{p.Name, p.Command})
		}
		out.Top = []api.TopKeys{}
		for _, rule := range all.Rules() {
			out.Top = append(out.Top, all.Top(rule, topKeys))
		}
	}
	if now.After(s.overviewAt) {
		began := time.Now()
		o, err := c.Overview(ctx, listedRows)
		if s.failed[1] = err != nil; err == nil {
			out.Overview = o
			out.Throttled, out.Shadow = split(o.ByRule, shadows(out.Rules))
		}
		s.overviewAt = now.Add(max(sampleEvery/2, 10*time.Since(began)))
	}
	if now.After(s.partitionsAt) {
		partitions, err := c.Partitions(ctx)
		if s.failed[2] = err != nil; err == nil {
			out.Partitions = partitions
		}
		s.partitionsAt = now.Add(2 * sampleEvery)
	}
	for i, what := range parts {
		if s.failed[i] {
			out.Failed = append(out.Failed, what)
		}
	}
	s.last = out
	return &out
}

// split sums the numbers of rules that are enforced, and those of shadow rules.
func split(byRule map[string]int64, shadows map[string]bool) (enforced, shadow int64) {
	for name, n := range byRule {
		if shadows[name] {
			shadow += n
		} else {
			enforced += n
		}
	}
	return enforced, shadow
}

// latency returns the latency of the last 30 to 60 s.
func (s *sampler) latency(now time.Time, c Config) *Latency {
	newest := c.Latencies()
	if s.latenciesAt.IsZero() {
		s.latencies, s.latenciesAt = [2]check.Latencies{newest, newest}, now
	} else if now.Sub(s.latenciesAt) >= 30*time.Second {
		s.latencies, s.latenciesAt = [2]check.Latencies{s.latencies[1], newest}, now
	}
	recent := newest.Since(s.latencies[0])
	if recent.All == 0 {
		return nil
	}
	return &Latency{P50: 1000 * recent.Quantile(0.5), P99: 1000 * recent.Quantile(0.99)}
}

// meter compares what processes have counted with what they had counted before.
type meter struct{ before map[string]measured } // by process

type measured struct {
	atMs   int64
	counts map[string]activity.Counts
	rates  map[string]rate
}

// rates returns what all processes did since their reports before. If the report before is older than `longest`, it
// says nothing about now.
func (m *meter) rates(all activity.Activity, longest time.Duration) map[string]rate {
	sum, known := map[string]rate{}, map[string]measured{}
	for _, p := range all.Processes {
		was, seen := m.before[p.Name]
		now := measured{p.AtMs, p.Counts, map[string]rate{}}
		seconds := float64(p.AtMs-was.atMs) / 1000
		switch {
		case seen && p.AtMs == was.atMs:
			now = was
		case seen && seconds > 0 && seconds < longest.Seconds():
			for rule, c := range p.Counts {
				b := was.counts[rule]
				per := func(now, before int64) float64 { return max(0, float64(now-before)/seconds) }
				now.rates[rule] = rate{per(c.Allowed, b.Allowed), per(c.Denied, b.Denied), per(c.Events, b.Events),
					per(c.Units, b.Units)}
			}
		}
		known[p.Name] = now
		for rule := range p.Counts {
			r, of := sum[rule], now.rates[rule]
			sum[rule] = rate{r.Allowed + of.Allowed, r.Denied + of.Denied, r.Events + of.Events, r.Units + of.Units}
		}
	}
	m.before = known
	return sum
}

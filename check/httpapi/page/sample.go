package page

import (
	"context"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// Partition is where one partition stands.
type Partition struct {
	Partition int   `json:"partition"`
	LagMs     int64 `json:"lag_ms"` // age of the oldest event that no worker has read
	Pending   int64 `json:"pending"`
	Outbox    int64 `json:"outbox"`
	Dead      int64 `json:"dead"`
}

// Rule is a rule, in words too.
type Rule struct {
	Name   string `json:"name"`
	Match  string `json:"match"`
	Shadow bool   `json:"shadow,omitempty"`
	Says   string `json:"says"`
}

// sample is the state of a second.
type sample struct {
	AtMs       int64           `json:"at_ms"`
	Processes  []process       `json:"processes"`
	Rates      map[string]rate `json:"rates"` // of each rule
	Throttled  int64           `json:"throttled"`
	Shadow     int64           `json:"shadow"`         // keys that rules in the shadow would throttle
	Rows       []api.Throttled `json:"rows"`           // the first page of who is throttled
	Next       string          `json:"next,omitempty"` // of GET /v1/throttled
	Top        []api.TopKeys   `json:"top"`
	Partitions []Partition     `json:"partitions"`
	Rules      []Rule          `json:"rules"`
	// Failed says what could not be looked at the last time; it stands as it was seen before.
	Failed []string `json:"failed,omitempty"`
}

type process struct {
	Name    string `json:"name"`
	Command string `json:"command"`
}

// rate is per second; Throttled is of now. Allowed and Denied of a shadow rule are what it would have said.
type rate struct {
	Allowed   float64 `json:"allowed"`
	Denied    float64 `json:"denied"`
	Events    float64 `json:"events"`
	Units     float64 `json:"units"`
	Throttled int64   `json:"throttled"`
}

// point is one of a plot.
type point struct {
	AtMs    int64   `json:"t"`
	Allowed float64 `json:"a"`
	Denied  float64 `json:"d"`
	Events  float64 `json:"e"`
}

func (s *sample) point() point {
	p, shadows := point{AtMs: s.AtMs}, s.shadows()
	for name, r := range s.Rates {
		if !shadows[name] { // those count checks that another rule decided, or none
			p.Allowed, p.Denied = p.Allowed+r.Allowed, p.Denied+r.Denied
		}
		p.Events += r.Events
	}
	return p
}

// shadows tells which rules are shadow rules.
func (s *sample) shadows() map[string]bool {
	out := map[string]bool{}
	for _, r := range s.Rules {
		out[r.Name] = r.Shadow
	}
	return out
}

// sampler makes samples; it has what it needs of those before. One goroutine uses it.
type sampler struct {
	last   sample
	before map[string]measured // process → its counts when it published last
	// Looking at who is throttled reads all records: it rests for ten times as long as it took.
	throttledAt, partitionsAt time.Time
	failed                    [len(looks)]bool // the last time
}

// looks are what a sample is made of.
var looks = [...]string{"what processes do", "who is throttled", "partitions"}

type measured struct {
	atMs   int64
	counts map[string]activity.Counts
	rates  map[string]rate
}

// longAgo is after which what a process published says nothing of now.
const longAgo = 5 * time.Second

func (s *sampler) next(ctx context.Context, now time.Time, c Config) *sample {
	out := s.last
	out.AtMs, out.Failed, out.Rules = now.UnixMilli(), nil, c.Rules()
	all, err := c.Activity(ctx)
	if s.failed[0] = err != nil; err == nil {
		out.Processes, out.Rates = s.rates(all)
		out.Top = []api.TopKeys{}
		for _, rule := range all.Rules() {
			out.Top = append(out.Top, all.Top(rule, topKeys))
		}
	}
	if now.After(s.throttledAt) {
		began := time.Now()
		rows, next, err := c.Throttled(ctx, throttledRows, "")
		if s.failed[1] = err != nil; err == nil {
			out.Rows, out.Next = rows, next
		}
		s.throttledAt = now.Add(max(sampleEvery/2, 10*time.Since(began)))
	}
	if now.After(s.partitionsAt) {
		parts, err := c.Partitions(ctx)
		if s.failed[2] = err != nil; err == nil {
			out.Partitions = parts
		}
		s.partitionsAt = now.Add(2 * sampleEvery)
	}
	for i, what := range looks {
		if s.failed[i] {
			out.Failed = append(out.Failed, what)
		}
	}
	out.countThrottled()
	s.last = out
	return &out
}

// countThrottled counts the list, where that has all, or else takes what workers counted within the last
// seconds.
func (s *sample) countThrottled() {
	byRule := map[string]int64{}
	for name, r := range s.Rates {
		if s.Next != "" {
			byRule[name] = r.Throttled
		}
	}
	if s.Next == "" {
		for _, t := range s.Rows {
			byRule[t.Rule]++
		}
	}
	shadows := s.shadows()
	rates := make(map[string]rate, len(s.Rates)) // those of the sample before are being sent
	for name, r := range s.Rates {
		r.Throttled = 0
		rates[name] = r
	}
	s.Throttled, s.Shadow, s.Rates = 0, 0, rates
	for name, n := range byRule {
		if shadows[name] {
			s.Shadow += n
		} else {
			s.Throttled += n
		}
		r := s.Rates[name]
		r.Throttled = n
		s.Rates[name] = r
	}
}

// rates are what all processes did since they published before.
func (s *sampler) rates(all activity.Activity) ([]process, map[string]rate) {
	names, sum, known := []process{}, map[string]rate{}, map[string]measured{}
	for _, p := range all.Processes {
		names = append(names, process{p.Name, p.Command})
		was, seen := s.before[p.Name]
		now := measured{p.AtMs, p.Counts, map[string]rate{}}
		seconds := float64(p.AtMs-was.atMs) / 1000
		switch {
		case seen && p.AtMs == was.atMs:
			now = was
		case seen && seconds > 0 && seconds < longAgo.Seconds():
			for rule, c := range p.Counts {
				b := was.counts[rule]
				per := func(now, before int64) float64 { return max(0, float64(now-before)/seconds) }
				now.rates[rule] = rate{per(c.Allowed, b.Allowed), per(c.Denied, b.Denied), per(c.Events, b.Events),
					per(c.Units, b.Units), c.Throttled}
			}
		}
		known[p.Name] = now
		for rule, c := range p.Counts {
			r, of := sum[rule], now.rates[rule]
			sum[rule] = rate{r.Allowed + of.Allowed, r.Denied + of.Denied, r.Events + of.Events, r.Units + of.Units,
				r.Throttled + c.Throttled}
		}
	}
	s.before = known
	return names, sum
}

package bench

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Report is what a run found, and what it takes to repeat it. Units stand in the
// names; null is what the server does not tell.
type Report struct {
	// CommandLine and Redis, where the server is, are for the caller to fill in,
	// without passwords.
	CommandLine string `json:"command_line"`
	Redis       string `json:"redis"`

	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// RedisVersion is empty where the server tells none, as the embedded one does not.
	RedisVersion       string `json:"redis_version"`
	StreamNodeMaxBytes *int64 `json:"stream_node_max_bytes"`
	Go                 string `json:"go"`
	Platform           string `json:"platform"`
	CPUs               int    `json:"cpus"`
	// Prefix is what all keys of the run began with.
	Prefix   string   `json:"prefix"`
	Settings Settings `json:"settings"`
	Parts    []Part   `json:"parts"`
}

// Settings is the Config of a run with its defaults filled in.
type Settings struct {
	Keys          int     `json:"keys"`
	Skew          string  `json:"skew"`
	ZipfS         float64 `json:"zipf_s,omitempty"`
	EntriesPerKey int     `json:"entries_per_key"`
	Limit         int64   `json:"limit"`
	PerMs         int64   `json:"per_ms"`
	Connections   int     `json:"connections"`
	Batch         int     `json:"batch"`
	Partitions    int     `json:"partitions"`
	Seed          uint64  `json:"seed"`
}

// Part is what was measured of one operation under one algorithm.
type Part struct {
	Operation string `json:"operation"`
	// Algorithm is empty for append, which touches no counter.
	Algorithm string `json:"algorithm,omitempty"`
	// Loop is closed, where each connection's next call waits for its last one,
	// or open, where calls start at RatePerS whatever becomes of the earlier ones
	// and latency counts from the scheduled time.
	Loop     string   `json:"loop"`
	RatePerS *float64 `json:"rate_per_s,omitempty"`
	Slices   int      `json:"slices"`
	Figures
	// Of checks.
	Admitted *int64 `json:"admitted,omitempty"`
	Denied   *int64 `json:"denied,omitempty"`
	// Of folds: events appended for them, counted, out of the window, counted by
	// somebody else; and how many shared another's entry.
	Appended *int64 `json:"appended,omitempty"`
	Folded   *int64 `json:"folded,omitempty"`
	Late     *int64 `json:"late,omitempty"`
	Gone     *int64 `json:"gone,omitempty"`
	Merged   *int64 `json:"merged,omitempty"`
	// What Peek said of a key, on average over up to 100 keys, just before and after.
	UsedPerKeyBefore *float64 `json:"used_per_key_before,omitempty"`
	UsedPerKeyAfter  *float64 `json:"used_per_key_after,omitempty"`
	// The server's memory grew by so much while the keys were filled.
	BytesPerKey   *float64 `json:"bytes_per_key"`
	BytesPerEntry *float64 `json:"bytes_per_entry"`

	Yardsticks []Yardstick `json:"yardsticks"`
}

// Figures is what was measured of one contestant.
type Figures struct {
	Operations int64 `json:"operations"`
	// Calls are what errors and latencies are counted by: an append's call is a
	// pipeline, a fold's a batch.
	Calls      int64   `json:"calls"`
	Errors     int64   `json:"errors"`
	FirstError string  `json:"first_error,omitempty"`
	OpsPerS    float64 `json:"ops_per_s"`
	// RedisCPUUsPerOp is CPU time of Redis's main thread.
	RedisCPUUsPerOp *float64 `json:"redis_cpu_us_per_op"`
	P50Us           float64  `json:"p50_us"`
	P90Us           float64  `json:"p90_us"`
	P99Us           float64  `json:"p99_us"`
	P999Us          float64  `json:"p99_9_us"`
	MaxUs           float64  `json:"max_us"`
	// MaxLateStartUs, of an open loop, is how late this process started a call at
	// worst. The latencies contain it.
	MaxLateStartUs *float64 `json:"max_late_start_us,omitempty"`
}

// Yardstick is something simpler that was measured in turn with the product.
type Yardstick struct {
	Name string `json:"name"`
	Figures
	// XYardstick is how many times its Redis CPU per operation the product took,
	// XYardstickMedian the median of that over the slices.
	XYardstick       *float64 `json:"x_yardstick"`
	XYardstickMedian *float64 `json:"x_yardstick_median"`
	// XYardstickWall is the same of wall time, in a closed loop.
	XYardstickWall *float64 `json:"x_yardstick_wall"`
}

func newReport(ctx context.Context, c redis.UniversalClient, cfg *Config) *Report {
	r := &Report{
		Started: time.Now().Truncate(time.Second), Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
		Settings: Settings{
			Keys: cfg.Keys, Skew: cfg.Skew, EntriesPerKey: cfg.Entries, Limit: cfg.limit(),
			PerMs:       cfg.Per.Milliseconds(),
			Connections: cfg.Connections, Batch: cfg.Batch, Partitions: cfg.Partitions, Seed: cfg.Seed,
		},
		Parts: []Part{},
	}
	if cfg.Skew == Zipf {
		r.Settings.ZipfS = cfg.ZipfS
	}
	// Both may be refused, and the figures are none the worse.
	if text, err := c.Info(ctx, "server").Result(); err == nil {
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
				r.RedisVersion = v
			}
		}
	}
	if v, err := c.ConfigGet(ctx, "stream-node-max-bytes").Result(); err == nil {
		if n, err := strconv.ParseInt(v["stream-node-max-bytes"], 10, 64); err == nil {
			r.StreamNodeMaxBytes = &n
		}
	}
	return r
}

// Errors is how many calls failed, and what the first of them said.
func (r *Report) Errors() (n int64, first string) {
	add := func(f *Figures) {
		n += f.Errors
		if first == "" {
			first = f.FirstError
		}
	}
	for i := range r.Parts {
		add(&r.Parts[i].Figures)
		for j := range r.Parts[i].Yardsticks {
			add(&r.Parts[i].Yardsticks[j].Figures)
		}
	}
	return n, first
}

// partOf sums up the rounds of a part; rate is 0 for a closed loop.
func partOf(p *part, rounds []round, rate float64) *Part {
	sums := make(round, 1+len(p.yardsticks))
	for i := range sums {
		sums[i] = newTally()
		for _, r := range rounds {
			sums[i].merge(r[i])
		}
	}
	product := sums[0]
	out := &Part{Operation: p.operation, Algorithm: p.algorithm, Loop: "closed", Slices: len(rounds),
		Figures: figuresOf(product)}
	if rate > 0 {
		out.Loop, out.RatePerS = "open", &rate
	}
	switch p.operation {
	case Check:
		out.Admitted, out.Denied = &product.admitted, &product.denied
	case Fold:
		out.Appended, out.Folded, out.Late, out.Gone, out.Merged = &product.asked, &product.folded, &product.late,
			&product.gone, &product.merged
	}
	for i, y := range p.yardsticks {
		sum := sums[i+1]
		ys := Yardstick{Name: y.name, Figures: figuresOf(sum), XYardstick: times(product, sum)}
		var each []float64
		for _, r := range rounds {
			if x := times(r[0], r[i+1]); x != nil {
				each = append(each, *x)
			}
		}
		ys.XYardstickMedian = median(each)
		if rate == 0 && product.ops > 0 && sum.ops > 0 && sum.wall > 0 {
			x := (product.wall.Seconds() / float64(product.ops)) / (sum.wall.Seconds() / float64(sum.ops))
			ys.XYardstickWall = &x
		}
		out.Yardsticks = append(out.Yardsticks, ys)
	}
	return out
}

func figuresOf(t *tally) Figures {
	us := func(quantile float64) float64 { return float64(t.latency.ValueAtQuantile(quantile)) / 1e3 }
	f := Figures{
		Operations: t.ops, Calls: t.calls, Errors: t.errors,
		P50Us: us(50), P90Us: us(90), P99Us: us(99), P999Us: us(99.9), MaxUs: float64(t.latency.Max()) / 1e3,
	}
	if t.first != nil {
		f.FirstError = t.first.Error()
	}
	if t.wall > 0 {
		f.OpsPerS = float64(t.ops) / t.wall.Seconds()
	}
	if cpu, ok := t.cpuPerOp(); ok {
		f.RedisCPUUsPerOp = &cpu
	}
	if t.lateStart > 0 {
		late := float64(t.lateStart.Nanoseconds()) / 1e3
		f.MaxLateStartUs = &late
	}
	return f
}

// times is how many times b's CPU per operation a took; nil where it is not known.
func times(a, b *tally) *float64 {
	x, ok := a.cpuPerOp()
	y, ok2 := b.cpuPerOp()
	if !ok || !ok2 || y <= 0 {
		return nil
	}
	x /= y
	return &x
}

func median(list []float64) *float64 {
	if len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	m := (list[(len(list)-1)/2] + list[len(list)/2]) / 2
	return &m
}

package compare

import (
	"encoding/json"
	"io"
	"math"
	"time"
)

// Comparison is the result of one trace with every algorithm. Its JSON is for machines: the names contain the units,
// and null means not known.
type Comparison struct {
	Trace   TraceInfo    `json:"trace"`
	Windows []WindowInfo `json:"windows"`
	Redis   *string      `json:"redis"` // without its password; null if none was used
	// Algorithms are in the order of Names, the oracle last.
	Algorithms []Result `json:"algorithms"`
}

// TraceInfo describes the trace.
type TraceInfo struct {
	Name          string `json:"name"`
	Requests      int    `json:"requests"`
	Units         int64  `json:"units"`
	Keys          int    `json:"keys"`
	FirstMs       int64  `json:"first_ms"`
	LastMs        int64  `json:"last_ms"`
	Sorted        int    `json:"requests_sorted"`
	RejectedLines int    `json:"rejected_lines"`
}

// WindowInfo is one window of the rule.
type WindowInfo struct {
	Limit    int64 `json:"limit"`
	WindowMs int64 `json:"window_ms"`
}

// Kind says what sort of contestant an algorithm is.
type Kind string

// The kinds of contestants.
const (
	KindRedis     Kind = "redis"      // a rule may name it; it counts in Redis
	KindInProcess Kind = "in-process" // counters.Local
	KindBaseline  Kind = "baseline"   // a model that no rule can name
	KindOracle    Kind = "oracle"     // the correct result
)

// Result is the result of one algorithm. An over-admitted request was admitted although some window then held more
// than its limit, counting what this algorithm had admitted before. An under-admitted request was denied although
// every window had room.
type Result struct {
	Algorithm             string   `json:"algorithm"`
	Kind                  Kind     `json:"kind"`
	OfferedRequests       int64    `json:"offered_requests"`
	OfferedUnits          int64    `json:"offered_units"`
	AdmittedRequests      int64    `json:"admitted_requests"`
	AdmittedUnits         int64    `json:"admitted_units"`
	OverAdmittedRequests  int64    `json:"over_admitted_requests"`
	OverAdmittedUnits     int64    `json:"over_admitted_units"`
	UnderAdmittedRequests int64    `json:"under_admitted_requests"`
	UnderAdmittedUnits    int64    `json:"under_admitted_units"`
	GreatestOvershoot     int64    `json:"greatest_overshoot_units"`
	FirstOverAdmitted     *moment  `json:"first_over_admitted"`
	FirstUnderAdmitted    *moment  `json:"first_under_admitted"`
	RedisCPU              *float64 `json:"redis_cpu_us_per_check"`
	// BytesPerKey is also null for traces of fewer than minKeysForMemory keys.
	BytesPerKey *float64 `json:"bytes_per_key"`
}

// moment is the time and key at which something first happened in the trace.
type moment struct {
	Ms  int64  `json:"ms"`
	Key string `json:"key"`
}

// minKeysForMemory is how many keys a trace needs for a figure of memory per key. The server's buffers for a
// connection vary by some 30 KB, which is as much as the memory of fewer keys.
const minKeysForMemory = 1000

// WriteJSON writes one document with all comparisons.
func WriteJSON(w io.Writer, list []*Comparison) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Comparisons []*Comparison `json:"comparisons"`
	}{list})
}

func (c *contestant) result(keys int) Result {
	r := c.tally.Result
	r.Algorithm, r.Kind = c.name, c.kind
	if c.ground != nil && c.ground.tellsCPU {
		r.RedisCPU = rounded(micros(c.ground.cpu)/float64(r.OfferedRequests), 2)
	}
	if c.ground != nil && c.ground.tellsMemory && keys >= minKeysForMemory {
		r.BytesPerKey = rounded(float64(c.ground.memory)/float64(keys), 0)
	}
	return r
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func rounded(x float64, digits int) *float64 {
	scale := math.Pow10(digits)
	x = math.Round(x*scale) / scale
	return &x
}

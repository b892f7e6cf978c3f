package lua

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// QuickRule is a rule and the counters that are asked for under it.
type QuickRule struct {
	Rule     *Rule
	Counters []QuickCounter
}

// QuickCounter is a counter, and the units that all calls of a run ask of it.
type QuickCounter struct {
	Counter string
	Units   int64
}

// HasQuick says whether an algorithm has a script for the common check.
func HasQuick(algorithm string) bool { return isFile("quick-" + algorithm) }

// Quick runs the script of the common check over counters of one algorithm whose
// rules have no shadow windows. It gives per counter, in order, its state after the charge;
// NowMs is 0 where it was left untouched: then Check is to be asked. It is not safe to
// send again.
func Quick(ctx context.Context, c redis.Scripter, algorithm string, now Now, rules []QuickRule) ([]CheckResult, error) {
	n := 0
	for _, r := range rules {
		n += len(r.Counters)
	}
	keys, args := make([]string, 0, n), append(make([]any, 0, 1+len(rules)+n), now.arg())
	for _, r := range rules {
		args = append(args, r.encode())
		for _, it := range r.Counters {
			keys, args = append(keys, it.Counter), append(args, it.Units)
		}
	}
	v, err := script("quick-"+algorithm, nil).Run(ctx, c, keys, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("quick check script: %w", err)
	}
	reply := quickReply{}
	switch v := v.(type) {
	case string: // three values of one counter
		for text := range strings.SplitSeq(v, " ") {
			reply.values = append(reply.values, text)
		}
	case []any:
		reply.values = v
	}
	out := make([]CheckResult, n)
	i := 0
	for _, r := range rules {
		for range r.Counters {
			if out[i].NowMs = reply.next(); out[i].NowMs != 0 {
				out[i].Windows = reply.windows(out[i].NowMs, r.Rule.Windows)
			}
			i++
		}
	}
	if reply.wrong || len(reply.values) != 0 {
		return nil, fmt.Errorf("quick check script: a reply for %d counters that does not read: %.200q", n, fmt.Sprint(v))
	}
	return out, nil
}

// encode gives the rule's numbers as the scripts read them, with how many counters follow.
func (r *QuickRule) encode() []byte {
	b := make([]byte, 0, 16+13*len(r.Rule.Windows))
	b = appendNumber(b, 3, len(r.Counters))
	b = appendNumber(b, 6, r.Rule.SpanMs)
	b = appendNumber(b, 6, r.Rule.Setting)
	b = appendNumber(b, 1, len(r.Rule.Windows))
	for _, w := range r.Rule.Windows {
		b = appendNumber(b, 6, w.Ms)
		b = appendNumber(b, 7, min(w.Lowest, w.Limit+1))
	}
	return b
}

// appendNumber appends a number of so many bytes, the highest first.
func appendNumber[N int | int64](b []byte, bytes int, n N) []byte {
	for shift := 8 * (bytes - 1); shift >= 0; shift -= 8 {
		b = append(b, byte(n>>shift))
	}
	return b
}

// quickReply is what a script of the common check answered and is not yet read.
type quickReply struct {
	values []any
	wrong  bool // a value was missing, or none
}

// next reads a number, which may stand as text: also that of an entry's ID, its ms.
func (r *quickReply) next() int64 {
	if len(r.values) == 0 {
		r.wrong = true
		return 0
	}
	value := r.values[0]
	r.values = r.values[1:]
	switch value := value.(type) {
	case int64:
		return value
	case string:
		text, _, _ := strings.Cut(value, "-")
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
	}
	r.wrong = true
	return 0
}

// windows reads the states of a counter's windows.
func (r *quickReply) windows(nowMs int64, windows []Window) []WindowState {
	states := make([]WindowState, len(windows))
	for i, w := range windows {
		used := r.next()
		states[i] = WindowState{used, r.next() + w.Ms, nowMs + w.Ms}
	}
	return states
}

package lua

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// QuickCounter is a counter, its rule, which has no shadow windows, and the units that are asked of it.
type QuickCounter struct {
	Counter string
	Rule    *Rule
	Units   int64
	More    bool // the next counter is of the same group, of which all are charged or none is
}

// HasQuick says whether an algorithm has a script for the common check.
func HasQuick(algorithm string) bool { return isFile("quick-" + algorithm) }

// Quick runs the script of the common check over counters of one algorithm, group by group, each once. It
// gives per counter, in order, its state after the charge; NowMs is 0 where its group was left
// untouched, -1 if its log was the reason: then Check is to be asked. It is not safe to send again.
func Quick(ctx context.Context, c redis.Scripter, algorithm string, now Now, counters []QuickCounter) ([]CheckResult,
	error) {
	keys, rules, items := encodeQuick(counters)
	v, err := script("quick-"+algorithm, nil).Run(ctx, c, keys, now.arg(), rules, items).Result()
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
	out := make([]CheckResult, len(counters))
	windows := 0
	for _, it := range counters {
		windows += len(it.Rule.Windows)
	}
	states := make([]WindowState, windows)
	for i := range counters {
		nowMs, w := reply.next(), len(counters[i].Rule.Windows)
		if out[i].NowMs = nowMs; nowMs > 0 {
			out[i].Windows, states = states[:w:w], states[w:]
			for w, window := range counters[i].Rule.Windows {
				used := reply.next()
				out[i].Windows[w] = WindowState{used, reply.next() + window.Ms, nowMs + window.Ms}
			}
		}
	}
	if reply.wrong || len(reply.values) != 0 {
		return nil, fmt.Errorf("quick check script: a reply for %d counters that does not read: %.200s", len(out),
			fmt.Sprint(v))
	}
	return out, nil
}

// encodeQuick gives keys, rules and counters as the scripts take them.
func encodeQuick(counters []QuickCounter) (keys []string, rules, items []byte) {
	keys, items = make([]string, 0, len(counters)), make([]byte, 0, 11*len(counters))
	var places map[*Rule]int // where each rule begins, from 1; made where there are several
	var last *Rule
	at := 0
	for _, it := range counters {
		if it.Rule != last {
			known := false
			if last != nil {
				if places == nil {
					places = map[*Rule]int{last: at}
				}
				at, known = places[it.Rule]
			}
			if !known {
				at = len(rules) + 1
				rules = it.Rule.appendQuick(rules)
				if places != nil {
					places[it.Rule] = at
				}
			}
			last = it.Rule
		}
		more := 0
		if it.More {
			more = 1
		}
		keys = append(keys, it.Counter)
		items = appendNumber(appendNumber(appendNumber(items, 3, at), 7, it.Units), 1, more)
	}
	return keys, rules, items
}

func (r *Rule) appendQuick(b []byte) []byte {
	b = appendNumber(appendNumber(b, 6, r.SpanMs), 6, r.Setting)
	b = appendNumber(b, 1, len(r.Windows))
	for _, w := range r.Windows {
		b = appendNumber(appendNumber(b, 6, w.Ms), 7, min(w.Lowest, w.Limit+1))
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

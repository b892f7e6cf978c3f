package lua

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// CarryRule is a rule and the counters of keys that it takes now, each with those
// that it may have had under other algorithms.
type CarryRule struct {
	Rule *Rule
	// From are those algorithms, exact ones.
	From []string
	// Counters has per key the present counter, then one for each of From.
	Counters []string
}

// Carry runs carry.lua over keys of one slot, or one server, until it has looked at all of
// them: it puts what old counters hold into the present ones, each key in one step, and says
// how many had any. In the place of each old one it leaves a marker for markerMs, if that is
// above 0: other scripts that meet it end with an error for which IsCarried is true. It is safe to
// send again.
func Carry(ctx context.Context, c redis.Scripter, now Now, markerMs int64, rules []CarryRule) (carried int64,
	err error) {
	for {
		keys, args, algorithms := encodeCarry(now, markerMs, rules)
		n, err := eval(ctx, c, "carry", algorithms, keys, args, 2)
		if err != nil {
			return carried, err
		}
		carried += n[1]
		for looked := int(n[0]); ; {
			r := &rules[0]
			size := 1 + len(r.From)
			if here := len(r.Counters) / size; looked < here {
				r.Counters = r.Counters[looked*size:]
				break
			} else if looked -= here; len(rules) == 1 {
				return carried, nil
			}
			rules = rules[1:]
		}
	}
}

func encodeCarry(now Now, markerMs int64, rules []CarryRule) (keys []string, args []any, algorithms []string) {
	args = []any{now.arg(), markerMs, len(rules)}
	for _, r := range rules {
		args = append(r.Rule.appendTo(args), len(r.Counters)/(1+len(r.From)), len(r.From))
		algorithms = with(algorithms, r.Rule.Algorithm)
		for _, a := range r.From {
			args, algorithms = append(args, a), with(algorithms, a)
		}
		keys = append(keys, r.Counters...)
	}
	return keys, args, algorithms
}

// markerPrefix is what a marker begins with that Carry leaves in the place of a counter.
const markerPrefix = "carried:"

// IsCarried says whether a script ended, before it wrote anything, as it met a marker of Carry:
// the key of a counter is counted under another algorithm now. CarriedTo reads markers.
func IsCarried(err error) bool { return err != nil && strings.Contains(err.Error(), "CARRIED ") }

// CarriedTo gives, for each counter, the algorithm that a marker in its place names; "" where
// there is none.
func CarriedTo(ctx context.Context, c redis.UniversalClient, counters []string) ([]string, error) {
	pipe := c.Pipeline()
	texts := make([]*redis.StringCmd, len(counters))
	for i, name := range counters {
		texts[i] = pipe.GetRange(ctx, name, 0, 39)
	}
	_, err := pipe.Exec(ctx)
	to := make([]string, len(counters))
	for i, text := range texts {
		if e := text.Err(); e != nil && !redis.HasErrorPrefix(e, "WRONGTYPE") {
			return nil, fmt.Errorf("reading where keys were carried to: %w", cmp.Or(err, e))
		}
		if name, ok := strings.CutPrefix(text.Val(), markerPrefix); ok && IsExact(name) {
			to[i] = name
		}
	}
	return to, nil
}

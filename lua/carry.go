package lua

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Logs are the exact algorithms: what one has counted can be carried to another.
var Logs = []string{"sliding-log", "sliding-log-packed", "sliding-log-zset"}

// CarryRule is a rule and the counters of keys that it takes now, each with those
// that it may have had under other algorithms.
type CarryRule struct {
	Rule *Rule
	// From are those algorithms, of Logs.
	From []string
	// Counters has per key the present counter, then one for each of From.
	Counters []string
}

// Carry runs carry.lua over keys of one slot, or one server, until it has looked at all of
// them: it puts what old counters hold into the present ones, each key in one step, and says
// how many had any. It is safe to send again.
func Carry(ctx context.Context, c redis.Scripter, now Now, rules []CarryRule) (carried int64, err error) {
	for {
		keys, args, algorithms := encodeCarry(now, rules)
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

func encodeCarry(now Now, rules []CarryRule) (keys []string, args []any, algorithms []string) {
	args = []any{now.arg(), len(rules)}
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

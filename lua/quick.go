package lua

import (
	"context"
	"fmt"

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
	n, windows := 0, 0
	for _, r := range rules {
		n += len(r.Counters)
		windows += len(r.Counters) * len(r.Rule.Windows)
	}
	keys, args := make([]string, 0, n), append(make([]any, 0, 1+6*len(rules)+n), now.arg())
	for _, r := range rules {
		args = append(args, len(r.Counters), r.Rule.SpanMs, r.Rule.Setting, len(r.Rule.Windows))
		for _, w := range r.Rule.Windows {
			args = append(args, w.Ms, min(w.Lowest, w.Limit+1))
		}
		for _, it := range r.Counters {
			keys, args = append(keys, it.Counter), append(args, it.Units)
		}
	}
	v, err := script("quick-"+algorithm, nil).Run(ctx, c, keys, args...).Int64Slice()
	if err != nil {
		return nil, fmt.Errorf("quick check script: %w", err)
	}
	out := make([]CheckResult, 0, n)
	states := make([]WindowState, windows)
	for _, r := range rules {
		for range r.Counters {
			if len(v) == 0 || v[0] != 0 && len(v) < 1+2*len(r.Rule.Windows) {
				return nil, fmt.Errorf("quick check script: the reply ends after %d of %d counters", len(out), n)
			}
			got := CheckResult{NowMs: v[0]}
			v = v[1:]
			if got.NowMs != 0 {
				w := len(r.Rule.Windows)
				got.Windows, states = states[:w:w], states[w:]
				for i := range got.Windows {
					got.Windows[i] = WindowState{v[2*i], v[2*i+1], got.NowMs + r.Rule.Windows[i].Ms}
				}
				v = v[2*w:]
			}
			out = append(out, got)
		}
	}
	if len(v) != 0 {
		return nil, fmt.Errorf("quick check script: %d integers too many in the reply", len(v))
	}
	return out, nil
}

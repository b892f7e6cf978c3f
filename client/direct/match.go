package direct

import (
	"fmt"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// batch is a request as the counter takes it: each key once, with its costs added up.
type batch struct {
	reqs []api.CheckRequest
	asks []windows.Ask
	at   []int // request → its ask, -1 where no rule matches
}

// match finds the rules of the keys, and refuses costs that can never be admitted.
func match(rules *windows.Rules, reqs []api.CheckRequest) (batch, error) {
	b := batch{reqs: reqs, at: make([]int, len(reqs))}
	seen := make(map[string]int, len(reqs)) // key → its ask
	for i, r := range reqs {
		at, ok := seen[r.Key]
		if !ok {
			at = -1
			if rule := rules.Match(r.Key); rule != nil {
				at = len(b.asks)
				b.asks = append(b.asks, windows.Ask{Rule: rule, Key: r.Key})
			}
			seen[r.Key] = at
		}
		if b.at[i] = at; at >= 0 {
			b.asks[at].Cost += r.Cost
		}
	}
	for _, a := range b.asks {
		if most := a.Rule.Smallest(); a.Cost > most && !a.Rule.Shadow {
			return b, fmt.Errorf("%w: cost %d of key %s, the rule %q allows %d at most", api.ErrCostExceedsLimit, a.Cost, api.Shorten(a.Key), a.Rule.Name, most)
		}
	}
	return b, nil
}

// answer words the counter's verdict.
func (b batch) answer(v windows.Verdict) api.ChecksAnswer {
	all := api.ChecksAnswer{Allowed: v.Allowed, Atomic: v.Atomic, Checks: make([]api.CheckAnswer, len(b.reqs))}
	for i, r := range b.reqs {
		c := &all.Checks[i]
		*c = api.CheckAnswer{Allowed: true, Key: r.Key, Cost: r.Cost, Windows: []api.WindowState{}, Source: api.SourcePolicy, Note: "no rule matches this key"}
		if b.at[i] < 0 {
			continue
		}
		rule, standing := b.asks[b.at[i]].Rule, v.Items[b.at[i]]
		c.Allowed, c.Rule, c.Shadow, c.Source, c.Note = v.Allowed, rule.Name, rule.Shadow, api.SourceRedis, ""
		c.Windows = standing.WindowStates(rule)
		if rule.Shadow {
			c.WouldDeny = standing.RetryAfter != 0
			continue
		}
		c.RetryAfterMs = standing.RetryAfter.Milliseconds()
		all.RetryAfterMs = max(all.RetryAfterMs, c.RetryAfterMs)
	}
	return all
}

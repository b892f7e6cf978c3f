package client

import (
	"cmp"
	"slices"

	"github.com/streamcounter/streamcounter/api"
)

// Config.UnmatchedKeys applies to the answers of a server, which admits a key that no rule matches. If nobody
// answered, nothing is known about the rules, and Config.Policy alone decides.

func (s *shared) isRefused(a api.CheckAnswer) bool {
	return s.config.UnmatchedKeys == Deny && a.Allowed && a.Rule == "" && len(a.Shadow) == 0
}

// unmatched returns the denial of a key that no rule matches.
func unmatched(key string, cost int64) api.CheckAnswer {
	return api.CheckAnswer{Key: key, Cost: cmp.Or(cost, 1), Windows: []api.WindowState{}, RetryAfterMs: -1,
		Source: api.SourcePolicy, Note: api.NoRuleNote + ", and UnmatchedKeys is deny"}
}

func (s *shared) refuseUnmatched(a api.CheckAnswer) api.CheckAnswer {
	if s.isRefused(a) {
		return unmatched(a.Key, a.Cost)
	}
	return a
}

// refuseAllUnmatched denies all keys if one is refused. The server has already charged the others, and their answers
// say so.
func (s *shared) refuseAllUnmatched(all api.ChecksAnswer, reqs []api.CheckRequest) api.ChecksAnswer {
	if !slices.ContainsFunc(all.Checks, s.isRefused) {
		return all
	}
	for i, a := range all.Checks {
		if s.isRefused(a) {
			all.Checks[i] = unmatched(a.Key, a.Cost)
			continue
		}
		all.Checks[i].Allowed = false
		all.Checks[i].Charged = a.Charged || a.Allowed && reqs[i].Mode != api.ModeLook
	}
	all.Allowed, all.RetryAfterMs = false, -1
	return all
}

package client

import (
	"encoding/json"
	"fmt"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
)

// answerOf reads an answer: all of it where the server gave the detail, else what
// Envoy's own fields have, which is one window per key.
func answerOf(resp *rls.RateLimitResponse, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	all, ok := detailOf(resp)
	if !ok || len(all.Checks) != len(reqs) {
		all = api.ChecksAnswer{Atomic: len(reqs) == 1, Checks: make([]api.CheckAnswer, len(reqs))}
		if len(resp.Statuses) != len(reqs) {
			return all, Lost(fmt.Errorf("%d statuses to %d checks", len(resp.Statuses), len(reqs)))
		}
		for i, r := range reqs {
			all.Checks[i] = statusOf(resp.Statuses[i], r)
		}
	}
	switch resp.OverallCode {
	case rls.RateLimitResponse_OK:
		all.Allowed = true
	case rls.RateLimitResponse_OVER_LIMIT:
		all.Allowed = false
	default:
		return all, Lost(fmt.Errorf("overall code %v", resp.OverallCode))
	}
	all.RetryAfterMs = 0
	for i := range all.Checks {
		c := &all.Checks[i]
		c.Allowed = all.Allowed
		all.RetryAfterMs = max(all.RetryAfterMs, c.RetryAfterMs)
		addWait(c.Windows, resp.Statuses, i)
	}
	return all, nil
}

// detailOf reads what HTTP's body would have had.
func detailOf(resp *rls.RateLimitResponse) (all api.ChecksAnswer, ok bool) {
	v, ok := resp.GetDynamicMetadata().GetFields()[detailName]
	if !ok {
		return all, false
	}
	text, err := v.MarshalJSON()
	if err != nil {
		return all, false
	}
	return all, json.Unmarshal(text, &all) == nil
}

func statusOf(s *rls.RateLimitResponse_DescriptorStatus, r api.CheckRequest) api.CheckAnswer {
	a := api.CheckAnswer{Key: r.Key, Cost: r.Cost, Windows: []api.WindowState{}, Source: api.SourcePolicy}
	if s.CurrentLimit == nil {
		a.Note = "no rule matches this key"
		return a
	}
	limit, left := int64(s.CurrentLimit.RequestsPerUnit), int64(s.LimitRemaining)
	reset := s.DurationUntilReset.AsDuration().Milliseconds()
	// The server may have more windows than this one: nothing is learned from it.
	a.Rule, a.Source = s.CurrentLimit.Name, ""
	a.Windows = append(a.Windows, api.WindowState{
		Limit: limit, WindowMs: unitMs[s.CurrentLimit.Unit], Used: max(0, limit-left), Remaining: left, ResetMs: reset, MoreMs: reset,
	})
	if s.Code == rls.RateLimitResponse_OVER_LIMIT {
		a.RetryAfterMs = reset
	}
	return a
}

// addWait gives the windows of check i, which the detail has without it, the wait
// for their first units: that of the status, for the window that has least left,
// and no more than until each is empty.
func addWait(windows []api.WindowState, statuses []*rls.RateLimitResponse_DescriptorStatus, i int) {
	if i >= len(statuses) {
		return
	}
	wait := statuses[i].DurationUntilReset.AsDuration().Milliseconds()
	for j := range windows {
		if w := &windows[j]; w.MoreMs == 0 {
			w.MoreMs = min(wait, w.ResetMs)
		}
	}
}

var unitMs = map[rls.RateLimitResponse_RateLimit_Unit]int64{
	rls.RateLimitResponse_RateLimit_SECOND: 1000,
	rls.RateLimitResponse_RateLimit_MINUTE: 60_000,
	rls.RateLimitResponse_RateLimit_HOUR:   3_600_000,
	rls.RateLimitResponse_RateLimit_DAY:    86_400_000,
	rls.RateLimitResponse_RateLimit_WEEK:   7 * 86_400_000,
	rls.RateLimitResponse_RateLimit_MONTH:  30 * 86_400_000,
	rls.RateLimitResponse_RateLimit_YEAR:   365 * 86_400_000,
}

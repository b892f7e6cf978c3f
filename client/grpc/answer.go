package grpc

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// answerOf reads an answer. If the server sent the detail, it reads all of it. Otherwise it reads Envoy's own fields,
// which have one window per key. The detail has each key that has a rule, once; the statuses have an entry per
// request.
func answerOf(resp *rls.RateLimitResponse, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	detail, detailed := detailOf(resp)
	if len(resp.Statuses) != len(reqs) {
		return api.ChecksAnswer{}, transport.Lost(fmt.Errorf("%d statuses to %d checks", len(resp.Statuses), len(reqs)))
	}
	all := api.ChecksAnswer{Atomic: len(reqs) == 1 || detailed && detail.Atomic, RetryAfterMs: detail.RetryAfterMs,
		Checks: make([]api.CheckAnswer, len(reqs))}
	switch resp.OverallCode {
	case rls.RateLimitResponse_OK:
		all.Allowed = true
	case rls.RateLimitResponse_OVER_LIMIT:
	default:
		return all, transport.Lost(fmt.Errorf("overall code %v", resp.OverallCode))
	}
	for i, r := range reqs {
		c := &all.Checks[i]
		if at := slices.IndexFunc(detail.Checks, func(c api.CheckAnswer) bool { return c.Key == r.Key }); at >= 0 {
			*c = detail.Checks[at]
			if err := transport.ValidateAnswer(*c, r.Key); err != nil {
				return all, err
			}
			c.Cost, c.Windows = r.Cost, slices.Clone(c.Windows)
		} else if *c = statusOf(resp.Statuses[i], r); !all.Allowed && len(c.Windows) > 0 &&
			r.Cost > c.Windows[0].Limit {
			return all, fmt.Errorf("%w: cost %d of key %s, the rule %q allows %d at most", api.ErrCostExceedsLimit,
				r.Cost, api.Shorten(r.Key), c.Rule, c.Windows[0].Limit)
		}
		switch {
		case c.Rule == "":
			c.Allowed = true // no rule limits it, even if the others are denied
		case all.Allowed || !detailed: // the detail of a denied call says which of its keys are allowed
			c.Allowed = all.Allowed
		}
		if !detailed {
			all.RetryAfterMs = max(all.RetryAfterMs, c.RetryAfterMs)
		}
	}
	return all, nil
}

// detailOf reads what the body of an HTTP answer would have.
func detailOf(resp *rls.RateLimitResponse) (all api.ChecksAnswer, ok bool) {
	v, ok := resp.GetDynamicMetadata().GetFields()[detailName]
	if !ok {
		return all, false
	}
	text, err := v.MarshalJSON()
	if err != nil {
		return all, false
	}
	if json.Unmarshal(text, &all) != nil { // it may have read a part
		return api.ChecksAnswer{}, false
	}
	return all, true
}

func statusOf(s *rls.RateLimitResponse_DescriptorStatus, r api.CheckRequest) api.CheckAnswer {
	a := api.CheckAnswer{Key: r.Key, Cost: r.Cost, Windows: []api.WindowState{}, Source: api.SourcePolicy}
	if s.CurrentLimit == nil {
		a.Note = api.NoRuleNote
		return a
	}
	limit, reset := int64(s.CurrentLimit.RequestsPerUnit), max(s.DurationUntilReset.AsDuration(), 0)
	window := unit[s.CurrentLimit.Unit] * time.Duration(max(s.CurrentLimit.UnitMultiplier.GetValue(), 1))
	// The rule may have more windows than this one, so the Source is empty and client.Client does not remember the
	// rule.
	a.Rule, a.Source = s.CurrentLimit.Name, ""
	used := max(0, limit-int64(s.LimitRemaining))
	a.Windows = append(a.Windows, api.NewWindowState(limit, window, used, reset, reset))
	if s.Code == rls.RateLimitResponse_OVER_LIMIT {
		a.RetryAfterMs = reset.Milliseconds()
	}
	return a
}

const day = 24 * time.Hour

// unit is how long Envoy's units are. A month and a year are as long as in envoyproxy/ratelimit.
var unit = map[rls.RateLimitResponse_RateLimit_Unit]time.Duration{
	rls.RateLimitResponse_RateLimit_SECOND: time.Second,
	rls.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	rls.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	rls.RateLimitResponse_RateLimit_DAY:    day,
	rls.RateLimitResponse_RateLimit_WEEK:   7 * day,
	rls.RateLimitResponse_RateLimit_MONTH:  30 * day,
	rls.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

package config

import (
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/windows"
)

// Find gives the limit of a descriptor in a server. With limits they alone
// decide. Without (nil), the limit that the descriptor brings along does, or else
// the rule that matches its key. A key that is asked for as it is has the rule
// that matches it, in either case.
func Find(l *Limits, rules *windows.Rules, domain string, d *commonv3.RateLimitDescriptor, tag string) (Limit, bool) {
	own := isOwn(domain, d.GetEntries())
	if l != nil && !own {
		return l.Find(domain, d)
	}
	if d.GetLimit() != nil && !own {
		if limit, err := broughtLimit(domain, d, tag, bringing{onDeny: windows.OnDenySkip}); err == nil {
			return limit, true
		}
	}
	key, values := Key(domain, d, tag), map[string]string(nil)
	if !own {
		key, values = withValues(rules, domain, d, tag, key)
	}
	plan := rules.Match(key)
	if plan == nil {
		return Limit{Key: key}, false
	}
	return Limit{Key: key, Plan: plan, Values: values, Name: plan.Name(), Named: plan.Live != nil,
		Shadow: plan.Live == nil}, true
}

package config

import (
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/windows"
)

// Find returns the limit of a descriptor in a server. If there are limits, they alone decide. If l is nil, the limit
// in the descriptor itself decides, or else the rule that matches its key. For a key that is asked for as it is, the
// rule that matches it decides in either case.
func Find(l *Limits, rules *windows.Rules, domain string, d *commonv3.RateLimitDescriptor, tag string) (Limit, bool) {
	own := IsOwn(domain, d)
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

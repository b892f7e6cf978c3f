package config

import (
	"slices"

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
		if limit, err := broughtLimit(domain, d, tag, broughtOptions{onDeny: windows.OnDenySkip}); err == nil {
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

// withValues returns the key that counts a descriptor, and its values. If a descriptor has all entries that the
// value_from of a rule names, the rule is matched against the descriptor without them. The first rule in the file that
// matches decides. whole is the key of the whole descriptor.
func withValues(rules *windows.Rules, domain string, d *commonv3.RateLimitDescriptor, tag, whole string) (key string,
	values map[string]string) {
	list := rules.WithValueFrom()
	if len(list) == 0 {
		return whole, nil
	}
	other := first(rules, whole)
	for _, r := range list {
		if other != nil && other != r && !other.HasValueFrom() && rules.Before(other, r) {
			break
		}
		rest, values := split(d, r)
		if rest == nil {
			continue
		}
		if key := Key(domain, rest, tag); first(rules, key) == r {
			return key, values
		}
	}
	return whole, nil
}

// first returns the rule that decides a key, or else the first shadow rule; nil if no rule matches.
func first(rules *windows.Rules, key string) *windows.Rule {
	if plan := rules.MatchAsWritten(key); plan != nil {
		return plan.Rules()[0]
	}
	return nil
}

// split returns the descriptor without the entries that hold the rule's values, and the values. It returns nil if an
// entry is missing.
func split(d *commonv3.RateLimitDescriptor, r *windows.Rule) (rest *commonv3.RateLimitDescriptor,
	values map[string]string) {
	values, taken := map[string]string{}, map[string]bool{}
	for _, w := range r.Windows {
		if w.ValueFrom == "" {
			continue
		}
		i := slices.IndexFunc(d.GetEntries(), func(e *commonv3.RateLimitDescriptor_Entry) bool {
			return e.GetKey() == w.ValueFrom
		})
		if i < 0 {
			return nil, nil
		}
		value := d.GetEntries()[i].GetValue()
		if !w.CanCount(value) { // an error would let the request pass all limits
			value = shortened(appendText(nil, value))
		}
		values[w.Distinct], taken[w.ValueFrom] = value, true
	}
	rest = &commonv3.RateLimitDescriptor{}
	for _, e := range d.GetEntries() {
		if !taken[e.GetKey()] {
			rest.Entries = append(rest.Entries, e)
		}
	}
	return rest, values
}

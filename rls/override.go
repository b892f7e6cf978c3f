package rls

import (
	"fmt"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/windows"
)

// OverrideRule is the name of the rules of all limits that descriptors bring.
const OverrideRule = "override"

// Override is the limit that a descriptor brings along, in place of what is
// configured. The key names the window, `edge/path=a;per=60s`: requests that bring
// the same window share a count, whatever the number of requests they allow.
// The rule is made anew each time, which is cheaper than to look for it, and has
// no levels: two requests for one key that bring different limits would end each
// other's throttles. An override that cannot be is an error.
func Override(domain string, d *commonv3.RateLimitDescriptor, tag string) (Limit, error) {
	o := d.GetLimit()
	unit, multiplier := rlsv3.RateLimitResponse_RateLimit_Unit(o.GetUnit()), int64(1)
	if o.GetUnitMultiplier() != nil {
		multiplier = int64(o.GetUnitMultiplier().GetValue())
	}
	if spans[unit] == 0 {
		return Limit{}, fmt.Errorf("limit of a descriptor: unit %s: %w", o.GetUnit(), errUnit)
	}
	per, err := times(unit, multiplier)
	if err != nil {
		return Limit{}, fmt.Errorf("limit of a descriptor: unit_multiplier %w", err)
	}
	if isOwn(domain, d.GetEntries()) {
		return Limit{}, fmt.Errorf("limit of a descriptor: keys of the domain %q have the limits of the rules file", OwnDomain)
	}
	l := Limit{
		Key:  keyOf(domain, d, tag, fmt.Sprintf(";per=%ds", int64(per.Seconds()))),
		Name: dotted(domain, d), DenyAll: o.GetRequestsPerUnit() == 0,
		PerUnit: o.GetRequestsPerUnit(), Unit: unit, Multiplier: uint32(multiplier),
	}
	if !l.DenyAll {
		l.Rule = &windows.Rule{
			Name: OverrideRule, Match: "*", Algorithm: windows.DefaultAlgorithm, OnError: windows.OnErrorAllow, Unlevelled: true,
			Windows: []windows.Window{{Limit: int64(l.PerUnit), Per: per}},
		}
	}
	return l, nil
}

// ValidateOverride says what is wrong with the limit in a descriptor, nil where
// there is none.
func ValidateOverride(domain string, d *commonv3.RateLimitDescriptor) error {
	if d.GetLimit() == nil {
		return nil
	}
	_, err := Override(domain, d, "")
	return err
}

// dotted names a descriptor as envoyproxy/ratelimit does in its statistics.
func dotted(domain string, d *commonv3.RateLimitDescriptor) string {
	name := []byte(domain)
	for _, e := range d.GetEntries() {
		name = append(append(name, '.'), e.GetKey()...)
		if e.GetValue() != "" {
			name = append(append(name, '_'), e.GetValue()...)
		}
	}
	return string(name)
}

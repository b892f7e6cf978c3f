package config

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/streamcounter/streamcounter/windows"
)

// overrideRule is the name of the rules of all limits that descriptors bring.
const overrideRule = "override"

// broughtLimit returns the limit that a descriptor brings along, in place of what is configured. The key has the
// window, `edge/path=a;per=60s`: requests that bring the same window share a count, whatever the number of requests
// they allow. The rule has no levels: two requests for one key that bring different limits would end each other's
// throttles. If the override is invalid, it returns an error.
func broughtLimit(domain string, d *commonv3.RateLimitDescriptor, tag string, b broughtOptions) (Limit, error) {
	o := d.GetLimit()
	unit, multiplier := rlsv3.RateLimitResponse_RateLimit_Unit(o.GetUnit()), int64(1)
	if o.GetUnitMultiplier() != nil {
		multiplier = int64(o.GetUnitMultiplier().GetValue())
	}
	if spans[unit] == 0 {
		return Limit{}, fmt.Errorf("limit of a descriptor: unit %s: %w", o.GetUnit(), errUnit)
	}
	per, err := spanOf(unit, multiplier)
	if err != nil {
		return Limit{}, fmt.Errorf("limit of a descriptor: unit_multiplier %w", err)
	}
	if IsOwn(domain, d) {
		return Limit{}, fmt.Errorf("limit of a descriptor: keys of the domain %q have the limits of the rules file",
			ownDomain)
	}
	l := Limit{
		Key:  keyOf(domain, d, tag, ";per="+strconv.FormatInt(int64(per/time.Second), 10)+"s"),
		Name: strings.Join(LabelsOf(domain, d), "."), DenyAll: o.GetRequestsPerUnit() == 0,
		PerUnit: o.GetRequestsPerUnit(), Unit: unit, Multiplier: uint32(multiplier),
		Quota: b.quota, Watched: b.shadow,
	}
	if !l.DenyAll {
		l.Plan = overridePlan(brought{windows.Window{Limit: int64(l.PerUnit), Per: per}, b})
	}
	return l, nil
}

// brought is what a descriptor's own limit says.
type brought struct {
	windows.Window
	broughtOptions
}

// broughtOptions is what the configuration says about all limits that descriptors bring.
type broughtOptions struct {
	onDeny        windows.OnDeny
	shadow, quota bool
}

// overridePlans: limit → its plan. Checks of one key can share a run of the script only under the very same plan.
// Callers can bring any limit, so the cache is bounded. It is golang-lru, because most Go services already have that.
var overridePlans = sync.OnceValue(func() *lru.Cache[brought, *windows.Plan] {
	c, _ := lru.New[brought, *windows.Plan](mostOverrideRules) // the error is for a size below 1
	return c
})

const mostOverrideRules = 1024

func overridePlan(w brought) *windows.Plan {
	if plan, ok := overridePlans().Get(w); ok {
		return plan
	}
	plan := windows.PlanOf(&windows.Rule{
		Name: overrideRule, Match: "*", Algorithm: windows.DefaultAlgorithm, OnError: onError, Unlevelled: true,
		Windows: []windows.Window{w.Window}, OnDeny: w.onDeny, Shadow: w.shadow || w.quota,
		Exclusive: w.shadow || w.quota,
	})
	if first, ok, _ := overridePlans().PeekOrAdd(w, plan); ok {
		return first // another caller was faster
	}
	return plan
}

// ValidateBrought returns what is wrong with the limit in a descriptor. It is nil if there is no limit.
func ValidateBrought(domain string, d *commonv3.RateLimitDescriptor) error {
	if d.GetLimit() == nil {
		return nil
	}
	_, err := broughtLimit(domain, d, "", broughtOptions{})
	return err
}

// Package rls finds the limit that a descriptor of Envoy's rate limit service falls under.
package rls

import (
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/windows"
)

type Limit struct {
	Key                               string
	Rule                              *windows.Rule
	Name                              string
	Unlimited, Shadow, Quota, DenyAll bool
	Replaces                          []string
	PerUnit                           uint32
	Unit                              rlsv3.RateLimitResponse_RateLimit_Unit
	Multiplier                        uint32
}

func Replaced(limits []Limit) []bool { return make([]bool, len(limits)) }

func Key(domain string, d *commonv3.RateLimitDescriptor, tag string) string {
	if domain == "streamcounter" && len(d.Entries) == 1 && d.Entries[0].Key == "key" {
		return d.Entries[0].Value
	}
	k := domain
	for _, e := range d.Entries {
		k += "/" + e.Key + "=" + e.Value
	}
	return k
}

package check

import (
	"cmp"
	"context"
	"fmt"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/rls"
	"github.com/streamcounter/streamcounter/windows"
)

// maxDescriptors bounds a request: each may cost Redis a look-up.
const maxDescriptors = 100

// mostHits is what a descriptor can ask for: above it no limit admits any.
const mostHits = windows.MaxLimit + 1

// RateLimits answers Envoy's rate limit service (v3): ShouldRateLimit decides all
// descriptors of a request together, all or nothing.
type RateLimits struct {
	rlsv3.UnimplementedRateLimitServiceServer
	service *Service
	config  RateLimitsConfig
}

// RateLimitsConfig of a RateLimits. The zero value serves the rules alone.
type RateLimitsConfig struct {
	// Find gives the limit of a descriptor; nil: the rule that matches rls.Key.
	Find func(domain string, d *commonv3.RateLimitDescriptor) (rls.Limit, bool)
	// Tag names the descriptor entry that becomes the hash tag of keys.
	Tag string
	// Headers adds the headers of HTTP answers to the response, for Envoy to pass on.
	Headers bool
}

// NewRateLimits serves what s decides.
func NewRateLimits(s *Service, c RateLimitsConfig) *RateLimits {
	if c.Find == nil {
		c.Find = func(domain string, d *commonv3.RateLimitDescriptor) (rls.Limit, bool) {
			key := rls.Key(domain, d, c.Tag)
			rule := s.config.Rules().Match(key)
			if rule == nil {
				return rls.Limit{Key: key}, false
			}
			return rls.Limit{Key: key, Rule: rule, Name: rule.Name, Named: true}, true
		}
	}
	return &RateLimits{service: s, config: c}
}

// descriptor is one descriptor on its way.
type descriptor struct {
	rls.Limit
	limited bool // something is configured for it
	skipped bool // another descriptor of the request replaces it
	hits    int64
	back    bool // the hits are given back
	ask     int  // its ask, -1 where Redis is not asked for it
	// standing is where it stands after hits were given back; nil: none were.
	standing *windows.Standing
}

// ShouldRateLimit implements Envoy's service. A request that is over a limit
// consumes nothing, in no descriptor.
func (r *RateLimits) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	defer r.service.config.Metrics.observe(time.Now())
	detailed := wantsDetail(ctx)
	list, err := r.read(req, detailed)
	if err != nil {
		return nil, statusOf(err)
	}
	asks, err := collect(list)
	if err != nil {
		return nil, statusOf(err)
	}
	d := decision{Verdict: windows.Verdict{Allowed: true, Atomic: true}, source: api.SourcePolicy}
	if len(asks) > 0 {
		d = r.service.decide(ctx, asks)
	}
	if d.err == nil && d.Allowed {
		d.err = r.giveBack(ctx, list)
	}
	for i, a := range asks {
		r.service.count(a, d, i)
	}
	if d.err != nil {
		return nil, statusOf(d.err)
	}
	return r.respond(list, asks, d, detailed), nil
}

// read validates the request and finds the limit of each descriptor.
func (r *RateLimits) read(req *rlsv3.RateLimitRequest, detailed bool) ([]descriptor, error) {
	if req.Domain == "" {
		return nil, fmt.Errorf("%w: the domain is empty", api.ErrBadRequest)
	}
	if n := len(req.Descriptors); n == 0 || n > maxDescriptors {
		return nil, fmt.Errorf("%w: %d descriptors, expected 1 to %d", api.ErrBadRequest, n, maxDescriptors)
	}
	list := make([]descriptor, len(req.Descriptors))
	replaces := false
	for i, d := range req.Descriptors {
		one := &list[i]
		one.ask = -1
		one.hits, one.back = int64(cmp.Or(req.HitsAddend, 1)), d.GetIsNegativeHits()
		if h := d.GetHitsAddend(); h != nil {
			one.hits = int64(min(h.Value, uint64(mostHits)))
		}
		if err := rls.ValidateOverride(req.Domain, d); err != nil {
			return nil, fmt.Errorf("%w: descriptors[%d]: %w", api.ErrBadRequest, i, err)
		}
		one.Limit, one.limited = r.config.Find(req.Domain, d)
		replaces = replaces || len(one.Replaces) > 0
		if !one.limited || one.Rule == nil {
			continue
		}
		if err := api.ValidateKey(one.Key); err != nil {
			return nil, fmt.Errorf("descriptors[%d]: %w", i, err)
		}
		if detailed { // our own client is told what can never be, as over HTTP
			if err := costFits(windows.Ask{Rule: one.Rule, Key: one.Key, Cost: one.hits}); err != nil {
				return nil, err
			}
		}
	}
	if replaces {
		limits := make([]rls.Limit, len(list))
		for i := range list {
			limits[i] = list[i].Limit
		}
		for i, gone := range rls.Replaced(limits) {
			list[i].skipped = gone
		}
	}
	return list, nil
}

// asksRedis tells whether a descriptor charges or looks at a counter.
func (d *descriptor) asksRedis() bool {
	return d.limited && !d.skipped && !d.Unlimited && !d.DenyAll && d.Rule != nil
}

// collect gives what Redis is asked: each key once, under one limit.
func collect(list []descriptor) ([]windows.Ask, error) {
	asks := make([]windows.Ask, 0, len(list))
next:
	for i := range list {
		d := &list[i]
		if !d.asksRedis() || d.back {
			continue
		}
		for n := range asks {
			if asks[n].Key == d.Key {
				if asks[n].Rule != d.Rule {
					return nil, fmt.Errorf("%w: descriptors[%d]: another descriptor has the same key %s under another limit", api.ErrBadRequest, i, api.Shorten(d.Key))
				}
				asks[n].Cost += d.hits
				d.ask = n
				continue next
			}
		}
		d.ask = len(asks)
		asks = append(asks, windows.Ask{Rule: d.Rule, Key: d.Key, Cost: d.hits})
	}
	return asks, nil
}

// giveBack returns hits to the descriptors that ask for it, one by one: it is
// done after the others are charged, so that a denied request gives nothing back.
func (r *RateLimits) giveBack(ctx context.Context, list []descriptor) error {
	for i := range list {
		d := &list[i]
		if !d.back || !d.asksRedis() || d.hits == 0 {
			continue
		}
		st, err := r.service.refund(ctx, d.Rule, d.Key, d.hits)
		if err != nil {
			return err
		}
		d.standing = st
	}
	return nil
}

// wantsDetail tells whether the caller asks for the answer in our own words too.
func wantsDetail(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, "streamcounter-detail")) > 0
}

package envoy

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy/config"
	"github.com/streamcounter/streamcounter/internal/inflight"
	"github.com/streamcounter/streamcounter/windows"
)

// maxDescriptors bounds a request: each may cost Redis a look-up.
const maxDescriptors = 100

// mostHits is the most hits that a descriptor can ask for; a larger number counts as this. No limit admits as many.
const mostHits = windows.MaxLimit + 1

// Service answers Envoy's rate limit service (v3): ShouldRateLimit decides all
// descriptors of a request together, all or nothing.
type Service struct {
	rlsv3.UnimplementedRateLimitServiceServer
	checks *check.Service
	config Config
	bodies *inflight.Pool // of requests in JSON
}

// Config of a Service. Rules is required.
type Config struct {
	// Rules returns the current rules. Limits returns the limits of a configuration of envoyproxy/ratelimit that
	// belong to the rules. If Limits is nil or returns nil, there is no such configuration.
	Rules  func() *windows.Rules
	Limits func() *config.Limits
	// Tag names the descriptor entry that becomes the hash tag of keys.
	Tag string
	// Headers adds the headers of HTTP answers to the response, for Envoy to pass on. If HeaderNames has a name, the
	// headers that it names are added instead.
	Headers     bool
	HeaderNames HeaderNames
	// Metadata puts the request, and the metadata of the limits that admit it, into the dynamic metadata of every
	// response; otherwise only responses to requests with a quota have any.
	Metadata bool
	// Ready returns an error while it is not known what is limited; nil: it is always known.
	Ready func() error
	// Metrics under the names of envoyproxy/ratelimit; nil: none.
	Metrics *Metrics
}

// HeaderNames are three headers with a number each: the limit that is nearest, what remains of it, and the seconds
// until more comes.
type HeaderNames struct{ Limit, Remaining, Reset string }

// NewService serves what checks decides.
func NewService(checks *check.Service, c Config) *Service {
	if c.Limits == nil {
		c.Limits = func() *config.Limits { return nil }
	}
	return &Service{checks: checks, config: c, bodies: inflight.NewPool(jsonMemory)}
}

// descriptor is one descriptor while it is decided.
type descriptor struct {
	config.Limit
	limited bool // something is configured for it
	skipped bool // another descriptor of the request replaces it
	hits    int64
	mode    api.Mode // our own client's; empty: take
	refund  bool     // the hits are given back
	request int      // its index among the requests of the check; -1: it has none
	// upTo is what it and the descriptors before it ask of the same key. total is what all descriptors ask of that
	// key.
	upTo, total int64
	// over and used are its state for metrics, whatever the status says.
	over bool
	used int64 // -1: not known
}

// ShouldRateLimit implements Envoy's service. A request that is over a limit
// consumes nothing, in no descriptor.
func (r *Service) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	done := r.config.Metrics.began()
	resp, err := r.decide(ctx, req)
	done(err)
	return resp, err
}

func (r *Service) decide(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	detailed := wantsDetail(ctx)
	list, err := r.read(req)
	if err == nil {
		ctx, err = withMetadata(ctx, list, detailed)
	}
	if err != nil {
		return nil, statusOf(err)
	}
	answer, err := r.checks.Decide(ctx, requestsOf(list, detailed))
	if err != nil {
		return nil, statusOf(err)
	}
	resp := r.respond(req, list, answer, detailed)
	r.config.Metrics.limits(req, list)
	return resp, nil
}

// read validates the request and finds the limit of each descriptor.
func (r *Service) read(req *rlsv3.RateLimitRequest) ([]descriptor, error) {
	if req.Domain == "" {
		return nil, fmt.Errorf("%w: the domain is empty", api.ErrBadRequest)
	}
	if n := len(req.Descriptors); n == 0 || n > maxDescriptors {
		return nil, fmt.Errorf("%w: %d descriptors, expected 1 to %d", api.ErrBadRequest, n, maxDescriptors)
	}
	if r.config.Ready != nil {
		if err := r.config.Ready(); err != nil {
			return nil, err
		}
	}
	limits, rules := r.config.Limits(), r.config.Rules()
	list := make([]descriptor, len(req.Descriptors))
	for i, d := range req.Descriptors {
		one := &list[i]
		one.hits, one.refund = int64(cmp.Or(req.HitsAddend, 1)), d.GetIsNegativeHits()
		if h := d.GetHitsAddend(); h != nil {
			one.hits = int64(min(h.Value, uint64(mostHits)))
		}
		if err := config.ValidateBrought(req.Domain, d); err != nil {
			return nil, fmt.Errorf("%w: descriptors[%d]: %w", api.ErrBadRequest, i, err)
		}
		one.Limit, one.limited = config.Find(limits, rules, req.Domain, d, r.config.Tag)
		if one.limited && one.Plan != nil || config.IsOwn(req.Domain, d) {
			if err := api.ValidateKey(one.Key); err != nil {
				return nil, fmt.Errorf("descriptors[%d]: %w", i, err)
			}
		}
	}
	for i := range list {
		for j := 0; len(list[i].Replaces) > 0 && j < len(list); j++ {
			list[j].skipped = list[j].skipped || list[j].IsReplacedBy(&list[i].Limit)
		}
	}
	return list, nil
}

// requestsOf returns the requests for the descriptors. Our own client, which asks for the detail, receives an error
// for a cost that can never be admitted, as over HTTP. Other clients are denied.
func requestsOf(list []descriptor, detailed bool) []check.Request {
	reqs := make([]check.Request, 0, len(list))
	totals := make(map[string]int64, len(list)) // key → the hits that are asked of it
	for i := range list {
		d := &list[i]
		d.request = -1
		never := d.DenyAll && !d.refund && !d.Shadow && !d.Quota && !d.Watched
		if d.skipped || d.Unlimited || d.limited && d.Plan == nil && !never || d.Key == "" {
			continue
		}
		d.request = len(reqs)
		reqs = append(reqs, check.Request{Plan: d.Plan, Key: d.Key, Cost: d.hits, Mode: d.mode, Never: never,
			AboveLimit: !detailed, EachState: !detailed, Refund: d.refund, Values: d.Values})
		if !d.refund {
			totals[d.Key] += d.hits
			d.upTo = totals[d.Key]
		}
	}
	for i := range list {
		list[i].total = totals[list[i].Key]
	}
	return reqs
}

// wantsDetail reports whether the caller asks for the answer in our own form too.
func wantsDetail(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, "streamcounter-detail")) > 0
}

// withMetadata reads what our own client sends beside the request: the modes of the descriptors, and the key that
// makes the call api.Repeatable. Other clients may send the key too.
func withMetadata(ctx context.Context, list []descriptor, detailed bool) (context.Context, error) {
	var values []string
	if detailed {
		values = metadata.ValueFromIncomingContext(ctx, "streamcounter-mode")
	}
	if len(values) > 0 {
		modes := strings.Split(values[0], ",")
		if len(modes) != len(list) {
			return ctx, fmt.Errorf("%w: %d modes for %d descriptors", api.ErrBadRequest, len(modes), len(list))
		}
		reqs := make([]api.CheckRequest, len(list))
		for i, mode := range modes {
			list[i].mode, reqs[i].Mode = api.Mode(mode), api.Mode(mode)
		}
		if err := api.ValidateModes(reqs); err != nil {
			return ctx, err
		}
	}
	return withKey(ctx)
}

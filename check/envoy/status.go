package envoy

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/headers"
	"github.com/streamcounter/streamcounter/windows"
)

type (
	limitStatus = rlsv3.RateLimitResponse_DescriptorStatus
	limitWire   = rlsv3.RateLimitResponse_RateLimit
)

const (
	codeOK   = rlsv3.RateLimitResponse_OK
	codeOver = rlsv3.RateLimitResponse_OVER_LIMIT
)

// respond makes the response: one status per descriptor, in order.
func (r *Service) respond(req *rlsv3.RateLimitRequest, list []descriptor, answer api.ChecksAnswer,
	detailed bool) *rlsv3.RateLimitResponse {
	out := &rlsv3.RateLimitResponse{OverallCode: codeOK, Statuses: make([]*limitStatus, len(list))}
	statuses := make([]limitStatus, len(list))
	quotas, limits := quotas{}, r.config.Limits()
	for i := range list {
		one := &list[i]
		s := &statuses[i]
		out.Statuses[i] = s
		one.status(s, answer)
		if !one.refund && (one.isQuota() || limits.QuotaForAll() && !one.Unlimited) {
			quotas.add(req.Descriptors[i], i, s.Code == codeOver)
		} else if s.Code == codeOver {
			out.OverallCode = codeOver
		}
	}
	if !answer.Allowed || quotas.over() {
		out.OverallCode = codeOver
	}
	if limits.Shadow() && out.OverallCode == codeOver {
		out.OverallCode = codeOK
		r.config.Metrics.shadowed()
	}
	if len(quotas.groups) > 0 || r.config.Metadata {
		out.DynamicMetadata = quotas.metadata(req, list, out)
	}
	switch {
	case r.config.HeaderNames != HeaderNames{}:
		out.ResponseHeadersToAdd = r.config.HeaderNames.of(list, out)
	case r.config.Headers:
		out.ResponseHeadersToAdd = headersOf(list, answer, out, quotas.over())
	}
	if detailed {
		answer.Allowed = out.OverallCode == codeOK
		out.DynamicMetadata = withDetail(out.DynamicMetadata, answer)
	}
	return out
}

// headersOf returns the headers of HTTP answers. The headers of a denied request are only about the limits that deny
// it, and about how long these will deny it.
func headersOf(list []descriptor, answer api.ChecksAnswer, out *rlsv3.RateLimitResponse,
	quotasDeny bool) (added []*corev3.HeaderValue) {
	if out.OverallCode == codeOver {
		answer = denials(list, answer, out, quotasDeny)
	}
	h := http.Header{}
	headers.Set(h, answer.Checks, answer.RetryAfterMs)
	for name, values := range h {
		added = append(added, &corev3.HeaderValue{Key: name, Value: values[0]})
	}
	return added
}

// denials returns the answer about the descriptors that are over their limits.
func denials(list []descriptor, all api.ChecksAnswer, out *rlsv3.RateLimitResponse,
	quotasDeny bool) (answer api.ChecksAnswer) {
	seen := map[string]bool{}
	for i, s := range out.Statuses {
		d := &list[i]
		if s.Code != codeOver || seen[d.Key] || d.isQuota() && !quotasDeny {
			continue
		}
		seen[d.Key] = true
		wait := s.DurationUntilReset.AsDuration().Milliseconds()
		c := api.CheckAnswer{Rule: d.Name, Key: d.Key, Windows: []api.WindowState{{WindowMs: d.Per().Milliseconds(),
			NextFreeMs: wait}}}
		if own := d.ownAnswer(all); len(own.Windows) > 0 {
			c = own
			c.Windows = slices.Clone(c.Windows)
			for w := range c.Windows {
				c.Windows[w].NextFreeMs = max(c.Windows[w].NextFreeMs, min(wait, c.Windows[w].WindowMs))
			}
		}
		answer.Checks = append(answer.Checks, c)
		answer.RetryAfterMs = max(answer.RetryAfterMs, wait)
	}
	if slices.ContainsFunc(all.Checks, func(c api.CheckAnswer) bool { return c.Blocked() && c.RetryAfterMs < 0 }) {
		answer.RetryAfterMs = -1
	}
	return answer
}

// of returns the headers of the descriptor that is over, or else of the one that has least left.
func (n HeaderNames) of(list []descriptor, out *rlsv3.RateLimitResponse) (added []*corev3.HeaderValue) {
	var nearest *limitStatus
	for i, s := range out.Statuses {
		switch over := s.Code == codeOver && !list[i].isQuota(); {
		case s.CurrentLimit == nil:
		case nearest == nil, over, s.LimitRemaining < nearest.LimitRemaining && nearest.Code != codeOver:
			nearest = s
		}
	}
	if nearest == nil {
		return nil
	}
	reset := nearest.DurationUntilReset.AsDuration()
	for _, h := range []struct {
		name  string
		value int64
	}{
		{n.Limit, int64(nearest.CurrentLimit.RequestsPerUnit)}, {n.Remaining, int64(nearest.LimitRemaining)},
		{n.Reset, int64((reset + time.Second - 1) / time.Second)}, // rounded up: not before the time has come
	} {
		if h.name != "" {
			added = append(added, &corev3.HeaderValue{Key: h.name, Value: strconv.FormatInt(h.value, 10)})
		}
	}
	return added
}

// isQuota reports whether the descriptor denies nothing alone, but says that it is over. A shadow limit is never
// over, so a quota that is a shadow limit always has some left.
func (d *descriptor) isQuota() bool { return d.limited && !d.skipped && !d.Unlimited && d.Quota }

// status writes the outcome of the descriptor.
func (d *descriptor) status(s *limitStatus, answer api.ChecksAnswer) {
	s.Code, d.used = codeOK, -1
	switch {
	case !d.limited || d.skipped:
	case d.Unlimited:
		s.LimitRemaining = math.MaxUint32
	case d.refund:
		d.writeState(s, d.ownAnswer(answer), 0, 0)
	case d.DenyAll:
		s.CurrentLimit, s.DurationUntilReset, d.over = d.wire(nil), durationpb.New(d.Per()), true
		if !d.Shadow {
			s.Code = codeOver
		}
	case d.ownAnswer(answer).Blocked():
		s.Code, d.over = codeOver, true
		if rule := d.rule(); rule != nil {
			s.CurrentLimit = d.wireLimit(rule.Windows[0])
		}
		if wait := d.ownAnswer(answer).RetryAfterMs; wait > 0 {
			s.DurationUntilReset = durationpb.New(time.Duration(wait) * time.Millisecond)
		}
	default:
		later := int64(0)       // units that descriptors after it have charged
		ahead := max(1, d.upTo) // units that it and those before it would charge; for a look at least one
		if d.total > 0 && d.counted(answer) {
			later, ahead = d.total-d.upTo, 0
		}
		d.writeState(s, d.ownAnswer(answer), later, ahead)
	}
}

// counted reports whether the answer's states include the hits.
func (d *descriptor) counted(answer api.ChecksAnswer) bool {
	switch d.mode {
	case api.ModeLook:
		return false
	case api.ModeCharge:
		return true
	}
	return answer.Allowed || d.request >= 0 && answer.Checks[d.request].Charged
}

// writeState writes the state of the descriptor in the window that has least left, without what later descriptors have
// charged. The descriptor is over if `ahead` more units do not fit; a refund never is.
func (d *descriptor) writeState(s *limitStatus, a api.CheckAnswer, later, ahead int64) {
	rule := d.rule()
	if rule == nil {
		return
	}
	if len(a.Windows) == 0 && (a.Source == api.SourceCache || d.refund) {
		return // the request is denied and this key was not evaluated: its limit is left out
	}
	if len(a.Windows) == 0 { // on_error: allow decided
		s.CurrentLimit = d.wireLimit(rule.Windows[0])
		return
	}
	states, over, never := slices.Clone(a.Windows), a.DeniesUntilMs() > 0 && !a.Allowed, a.RetryAfterMs < 0
	for i := range states {
		w := &states[i]
		left := w.Limit - w.Used // below 0 if the limit is exceeded
		if a.DeniesUntilMs() > 0 {
			left = min(left, 0) // although a refund may have given units back
		}
		if w.OfValues() { // a value takes one unit for any hits, none if it is known; a says which
			w.Remaining = left
			over = over || w.Remaining < 1 && a.RetryAfterMs != 0
			continue
		}
		w.Remaining = left + later
		over, never = over || w.Remaining < ahead, never || ahead > w.Limit
	}
	w := api.Tightest(states)
	s.CurrentLimit = d.wire(w)
	s.LimitRemaining = uint32(max(0, min(w.Remaining, math.MaxUint32)))
	reset := w.NextFreeMs
	d.over, d.used = over && !d.refund, w.Limit-w.Remaining+ahead
	if d.over && !d.Shadow && (d.isQuota() || d.Watched || !rule.Shadow) {
		s.Code, s.LimitRemaining = codeOver, 0
		switch {
		case never: // no wait helps: the longest time of the window is sent
			reset = max(w.WindowMs, w.EmptyMs)
		case a.RetryAfterMs > 0:
			reset = a.RetryAfterMs
		}
	}
	s.DurationUntilReset = durationpb.New(time.Duration(reset) * time.Millisecond)
}

// wireLimit returns the limit of a window whose state is not known.
func (d *descriptor) wireLimit(w windows.Window) *rlsv3.RateLimitResponse_RateLimit {
	return d.wire(&api.WindowState{Limit: w.Limit, WindowMs: w.Per.Milliseconds(),
		WindowKind: api.WindowKind{InFlight: w.InFlight}})
}

// rule returns the rule that a status is about: the rule that decides, or Envoy's own limit in shadow or quota mode.
// It is nil for shadow rules of the rules file, which are not shown.
func (d *descriptor) rule() *windows.Rule {
	switch {
	case d.Plan == nil:
		return nil
	case d.Plan.Live == nil && !d.Plan.Shadows[0].Exclusive:
		return nil
	}
	return d.Plan.Rules()[0]
}

// ownAnswer returns what the answer says about that rule.
func (d *descriptor) ownAnswer(all api.ChecksAnswer) api.CheckAnswer {
	if d.request < 0 {
		return api.CheckAnswer{}
	}
	a := all.Checks[d.request]
	if rule := d.rule(); rule != nil && rule.Shadow && len(a.Shadow) > 0 {
		own := a.Shadow[0]
		a.Rule, a.Windows, a.RetryAfterMs, a.InForce = own.Rule, own.Windows, own.RetryAfterMs, api.InForce{}
	}
	return a
}

// units are the lengths up to a day that Envoy has names for, the longest first.
var units = []struct {
	unit rlsv3.RateLimitResponse_RateLimit_Unit
	ms   int64
}{
	{rlsv3.RateLimitResponse_RateLimit_DAY, 86_400_000}, {rlsv3.RateLimitResponse_RateLimit_HOUR, 3_600_000},
	{rlsv3.RateLimitResponse_RateLimit_MINUTE, 60_000}, {rlsv3.RateLimitResponse_RateLimit_SECOND, 1000},
}

// wire returns the limit in Envoy's form: a number per unit, or per several units.
func (d *descriptor) wire(w *api.WindowState) *limitWire {
	out := &limitWire{RequestsPerUnit: d.PerUnit, Unit: d.Unit}
	if d.Named {
		out.Name = d.Name
	}
	if d.Multiplier > 1 {
		out.UnitMultiplier = wrapperspb.UInt32(d.Multiplier)
	}
	if d.Unit != rlsv3.RateLimitResponse_RateLimit_UNKNOWN || w == nil {
		return out
	}
	out.RequestsPerUnit = uint32(min(w.Limit, math.MaxUint32))
	if w.InFlight {
		return out
	}
	if period := strings.ToUpper(w.Period()); period != "" {
		out.Unit = rlsv3.RateLimitResponse_RateLimit_Unit(rlsv3.RateLimitResponse_RateLimit_Unit_value[period])
		return out
	}
	for _, u := range units {
		if w.WindowMs%u.ms == 0 {
			out.Unit = u.unit
			if n := w.WindowMs / u.ms; n > 1 {
				out.UnitMultiplier = wrapperspb.UInt32(uint32(n))
			}
			break
		}
	}
	return out
}

// withDetail puts an answer, as HTTP has it, into the response's metadata.
func withDetail(metadata *structpb.Struct, answer api.ChecksAnswer) *structpb.Struct {
	text, err := json.Marshal(map[string]any{"streamcounter": answer})
	out := &structpb.Struct{}
	if err != nil || out.UnmarshalJSON(text) != nil {
		return metadata // cannot happen: only numbers and strings; the statuses have the answer too
	}
	maps.Copy(out.Fields, metadata.GetFields())
	return out
}

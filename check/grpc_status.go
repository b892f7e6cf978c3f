package check

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/api/headers"
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

// respond words the decision: one status per descriptor, in order.
func (r *RateLimits) respond(list []descriptor, asks []windows.Ask, d decision, detailed bool) *rlsv3.RateLimitResponse {
	out := &rlsv3.RateLimitResponse{OverallCode: codeOK, Statuses: make([]*limitStatus, len(list))}
	statuses := make([]limitStatus, len(list))
	for i := range list {
		one := &list[i]
		s := &statuses[i]
		out.Statuses[i] = s
		s.Code = codeOK
		switch {
		case !one.limited || one.skipped:
		case one.Unlimited:
			s.LimitRemaining = math.MaxUint32
		case one.DenyAll:
			s.CurrentLimit = one.wire(nil)
			if !one.Shadow && !one.Quota {
				s.Code, out.OverallCode = codeOver, codeOver
			}
		case one.ask >= 0:
			var st *windows.Standing
			if d.Items != nil {
				st = &d.Items[one.ask]
			}
			one.status(s, st, d.Allowed)
			if s.Code == codeOver {
				out.OverallCode = codeOver
			}
		default:
			one.status(s, one.standing, true)
		}
	}
	if !d.Allowed {
		out.OverallCode = codeOver
	}
	if r.config.Headers || detailed {
		answer := r.service.words(asks, d)
		if r.config.Headers {
			h := http.Header{}
			headers.Set(h, answer.Checks, answer.RetryAfterMs)
			for name, values := range h {
				out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &corev3.HeaderValue{Key: name, Value: values[0]})
			}
		}
		if detailed {
			out.DynamicMetadata = detailOf(answer)
		}
	}
	return out
}

// status words where one descriptor stands: in the window that admits it last,
// or else has least left.
func (d *descriptor) status(s *limitStatus, st *windows.Standing, allowed bool) {
	if st == nil { // on_error: allow decided
		s.CurrentLimit = d.wire(&d.Rule.Windows[0])
		return
	}
	w, remaining := 0, int64(math.MaxInt64)
	for i, win := range d.Rule.Windows {
		left := max(0, win.Limit-st.Windows[i].Used)
		if left < remaining || left == remaining && st.Windows[i].More > st.Windows[w].More {
			w, remaining = i, left
		}
	}
	s.CurrentLimit = d.wire(&d.Rule.Windows[w])
	s.LimitRemaining = uint32(min(remaining, math.MaxUint32))
	reset := st.Windows[w].More
	if st.RetryAfter != 0 && !d.Rule.Shadow && !allowed {
		s.Code = codeOver
		reset = st.RetryAfter
		if reset < 0 { // more than the limit: no wait helps
			reset = st.Windows[w].Reset
		}
	}
	s.DurationUntilReset = durationpb.New(reset)
}

// units are the lengths that Envoy has names for, the longest first. A month and
// a year are as long as envoyproxy/ratelimit has them.
var units = []struct {
	unit rlsv3.RateLimitResponse_RateLimit_Unit
	per  time.Duration
}{
	{rlsv3.RateLimitResponse_RateLimit_DAY, 24 * time.Hour}, {rlsv3.RateLimitResponse_RateLimit_HOUR, time.Hour},
	{rlsv3.RateLimitResponse_RateLimit_MINUTE, time.Minute}, {rlsv3.RateLimitResponse_RateLimit_SECOND, time.Second},
}

// wire names the limit as Envoy has it: so many per unit, or per several of it.
func (d *descriptor) wire(w *windows.Window) *limitWire {
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
	for _, u := range units {
		if w.Per%u.per == 0 {
			out.Unit = u.unit
			if n := w.Per / u.per; n > 1 {
				out.UnitMultiplier = wrapperspb.UInt32(uint32(n))
			}
			break
		}
	}
	return out
}

// words gives the decision as HTTP has it.
func (s *Service) words(asks []windows.Ask, d decision) api.ChecksAnswer {
	out := api.ChecksAnswer{Allowed: d.Allowed, Atomic: d.Atomic, Checks: make([]api.CheckAnswer, len(asks))}
	for i, a := range asks {
		out.Checks[i] = answerOf(a, d, i)
		out.RetryAfterMs = max(out.RetryAfterMs, out.Checks[i].RetryAfterMs)
	}
	return out
}

// detailOf puts an answer, as HTTP has it, into the response's metadata.
func detailOf(answer api.ChecksAnswer) *structpb.Struct {
	text, err := json.Marshal(map[string]any{"streamcounter": answer})
	if err != nil {
		return nil // only numbers and strings: it does not happen, and the statuses say it all
	}
	out := &structpb.Struct{}
	if out.UnmarshalJSON(text) != nil {
		return nil
	}
	return out
}

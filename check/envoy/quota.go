package envoy

import (
	"fmt"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// quotas are the descriptors of a request whose limits have quota_mode. A single quota denies nothing, because the
// request may be sent to another backend. The request is over its limit when no quota has anything left.
type quotas struct {
	groups     map[string]bool // group → one of its descriptors is over
	violations []any           // positions of descriptors that are over
}

// add records a descriptor.
func (q *quotas) add(d *commonv3.RateLimitDescriptor, at int, over bool) {
	if q.groups == nil {
		q.groups = map[string]bool{}
	}
	group := quotaGroup(d)
	q.groups[group] = q.groups[group] || over
	if over {
		q.violations = append(q.violations, at)
	}
}

// over reports whether each group is over, if there is a group.
func (q *quotas) over() bool {
	for _, over := range q.groups {
		if !over {
			return false
		}
	}
	return len(q.groups) > 0
}

// quotaGroup returns the group of a descriptor. As in envoyproxy/ratelimit, descriptors with the same backend_name
// and model_name_override are quotas of the same backend. A descriptor without these is a group of its own. With
// quotes, different parts never make the same text.
func quotaGroup(d *commonv3.RateLimitDescriptor) string {
	if backend, model := backendOf(d); backend != "" || model != "" {
		return fmt.Sprintf("%q|%q", backend, model)
	}
	all := ""
	for _, e := range d.GetEntries() {
		all += fmt.Sprintf("%q=%q;", e.GetKey(), e.GetValue())
	}
	return all
}

func backendOf(d *commonv3.RateLimitDescriptor) (backend, model string) {
	for _, e := range d.GetEntries() {
		switch e.GetKey() {
		case "backend_name":
			backend = e.GetValue()
		case "model_name_override":
			model = e.GetValue()
		}
	}
	return backend, model
}

// merge copies the entries of src that dst does not have into dst. If both have a mapping of one name, it merges these.
func merge(dst, src map[string]any) {
	for name, v := range src {
		have, ok := dst[name]
		if !ok {
			dst[name] = v
			continue
		}
		old, isMapping := have.(map[string]any)
		more, areMappings := v.(map[string]any)
		if isMapping && areMappings {
			merge(old, more)
		}
	}
}

// metadata returns the dynamic metadata of the response, under the names of envoyproxy/ratelimit: the request, the
// metadata of the limits that admit it, the positions of the descriptors whose quotas are over, and the backends that
// have some left.
func (q *quotas) metadata(req *rlsv3.RateLimitRequest, limits []descriptor,
	resp *rlsv3.RateLimitResponse) *structpb.Struct {
	list := make([]any, len(req.Descriptors))
	for i, d := range req.Descriptors {
		entries := make([]any, len(d.GetEntries()))
		for n, e := range d.GetEntries() {
			entries[n] = utf8(e.GetKey() + "=" + e.GetValue())
		}
		one := map[string]any{"entries": entries}
		if h := d.GetHitsAddend(); h != nil {
			one["hitsAddend"] = h.GetValue()
		}
		if l := d.GetLimit(); l != nil {
			one["limit"] = fmt.Sprintf("%d per %s", l.GetRequestsPerUnit(), l.GetUnit())
		}
		list[i] = one
	}
	fields := map[string]any{"domain": utf8(req.Domain), "descriptors": list, "quotaModeEnabled": len(q.groups) > 0}
	if len(q.violations) > 0 {
		fields["quotaModeViolations"] = q.violations
	}
	if req.HitsAddend != 0 {
		fields["hitsAddend"] = req.HitsAddend
	}
	passed, backends := map[string]any{}, []any{}
	named := map[string]bool{}
	for i := range limits {
		group := quotaGroup(req.Descriptors[i])
		if over, quota := q.groups[group]; resp.Statuses[i].Code == codeOver || quota && over ||
			limits[i].refund {
			continue
		}
		if !limits[i].Unlimited && !limits[i].skipped {
			merge(passed, limits[i].Metadata.AsMap())
		}
		backend, model := backendOf(req.Descriptors[i])
		if len(q.groups) > 0 && !named[group] && backend+model != "" {
			named[group] = true
			backends = append(backends, map[string]any{"backend_name": utf8(backend),
				"model_name_override": utf8(model)})
		}
	}
	if len(passed) > 0 {
		fields["metadata"] = passed
	}
	if len(backends) > 0 {
		fields["passedBackends"] = backends
	}
	out, err := structpb.NewStruct(fields)
	if err != nil {
		return nil // cannot happen: all text is UTF-8
	}
	return out
}

// utf8 returns a caller's text as protobuf can send it.
func utf8(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

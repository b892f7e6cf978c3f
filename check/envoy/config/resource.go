package config

import (
	"fmt"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	// The one published form of these resources: Envoy Gateway makes them with it too.
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// FromResources makes limits of the resources of an xDS server, by the same steps as NewSource makes them of files.
// Limits that cannot be counted are left out, and the others stay in effect. Refused returns an error that names the
// resource and the field of each.
func FromResources(resources []*rlsconf.RateLimitConfig, o Options) (*Limits, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var files []*file
	var refused []error
	for _, r := range resources {
		f := readResource(r)
		if err := f.checkDomain(); err != nil {
			refused = append(refused, err)
			continue
		}
		files = append(files, f)
	}
	l, err := build(files, o)
	if err == nil {
		l.refused = append(refused, l.refused...)
	}
	return l, err
}

func readResource(r *rlsconf.RateLimitConfig) *file {
	f := &file{name: r.GetName(), domain: r.GetDomain()}
	f.readUnknown("", r.ProtoReflect().GetUnknown())
	f.descriptors = f.nested(r.GetDescriptors(), "descriptors", 1)
	return f
}

// nested reads descriptors. A descriptor without a key is left out. A descriptor whose limit is wrong is kept without
// the limit, so that no other limit takes its requests.
func (f *file) nested(list []*rlsconf.RateLimitDescriptor, at string, depth int) (out []*descriptor) {
	if depth > maxDepth && len(list) > 0 {
		f.refused = append(f.refused, f.ErrorAt(at, "descriptors nested deeper than %d", maxDepth))
		return nil
	}
	for i, d := range list {
		r := &descriptor{in: f, at: fmt.Sprintf("%s[%d]", at, i), key: d.GetKey(), value: d.GetValue(),
			shadow: d.GetShadowMode(), detailed: d.GetDetailedMetric()}
		r.quota = f.readUnknown(r.at, d.ProtoReflect().GetUnknown())
		if p := d.GetRateLimit(); p != nil {
			r.limit = &rateLimit{unit: unitName(p.GetUnit()), perUnit: int64(p.GetRequestsPerUnit()), multiplier: 1,
				unlimited: p.GetUnlimited(), name: p.GetName()}
			for _, other := range p.GetReplaces() {
				r.limit.replaces = append(r.limit.replaces, other.GetName())
			}
			f.readUnknown(r.at+".rate_limit", p.ProtoReflect().GetUnknown())
		}
		if err := f.check(r); err != nil {
			f.refused = append(f.refused, err)
			r.limit = nil
		}
		if r.key != "" {
			r.nested = f.nested(d.GetDescriptors(), r.at+".descriptors", depth+1)
			out = append(out, r)
		}
	}
	return out
}

// unitName returns the name of a unit in files. The published package has no units longer than a day. Longer units
// have the same numbers as in Envoy's answers.
func unitName(unit rlsconf.RateLimitUnit) string {
	if unit == rlsconf.RateLimitUnit_UNKNOWN {
		return ""
	}
	return strings.ToLower(rlsv3.RateLimitResponse_RateLimit_Unit(unit).String())
}

// quotaMode is the number of a descriptor's quota_mode, which the published package does
// not have yet.
const quotaMode protowire.Number = 7

// readUnknown reads fields that the published package does not know. It returns quota_mode of a descriptor. It ignores
// other fields, as is usual in protobuf, and makes warnings of them.
func (f *file) readUnknown(at string, unknown protoreflect.RawFields) (quota bool) {
	for len(unknown) > 0 {
		number, kind, n := protowire.ConsumeTag(unknown)
		if n < 0 {
			return quota
		}
		size := protowire.ConsumeFieldValue(number, kind, unknown[n:])
		if size < 0 {
			return quota
		}
		if number == quotaMode && kind == protowire.VarintType && strings.HasSuffix(at, "]") {
			v, _ := protowire.ConsumeVarint(unknown[n:])
			quota = v != 0
		} else if len(f.unknown) < maxNoted {
			f.unknown = append(f.unknown, fmt.Sprintf("resource %q: %s: unknown field %d is ignored",
				f.name, at, number))
		}
		unknown = unknown[n+size:]
	}
	return quota
}

// maxNoted bounds the warnings about one resource.
const maxNoted = 3

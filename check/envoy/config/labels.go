package config

import (
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// labels returns the labels of a limit in metrics. They are made of the values that were asked for: of all values if
// the limit is detailed, otherwise of those of the descriptors that say so (value_to_metric). Values that share a
// count share a label too.
func labels(domain string, entries []*commonv3.RateLimitDescriptor_Entry, path []*node, detailed bool) []string {
	out := append(make([]string, 0, len(path)+1), domain)
	for i, n := range path {
		shared := n.value.fixed && len(n.value.pieces) > 1
		if shared || !detailed && !n.live {
			out = append(out, n.label)
		} else {
			out = append(out, label(entries[i]))
		}
	}
	return out
}

// LabelsOf returns the labels of a descriptor that no configured limit was found for.
func LabelsOf(domain string, d *commonv3.RateLimitDescriptor) []string {
	out := []string{domain}
	for _, e := range d.GetEntries() {
		out = append(out, label(e))
	}
	return out
}

func label(e *commonv3.RateLimitDescriptor_Entry) string {
	if e.GetValue() == "" {
		return e.GetKey()
	}
	return e.GetKey() + "_" + e.GetValue()
}

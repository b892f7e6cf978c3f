package config

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

type entry = commonv3.RateLimitDescriptor_Entry

// path leads from a domain to one of its descriptors.
type path struct {
	domain *domain
	nodes  []*node
	tagged int // the node in braces, which chooses the partition; -1: none
}

// text returns the path as keys and patterns have it, from the text of the domain on. write returns the text of a key
// or a value of the node at i.
func (p path) text(domain string, write func(one *pattern, i int) string) string {
	for i, n := range p.nodes {
		text := write(&n.key, i) + "=" + write(&n.value, i)
		if i == p.tagged {
			text = "{" + text + "}"
		}
		domain += "/" + text
	}
	return domain
}

// shortest returns a text as long as the shortest key of the path: with a ~ for the text of each star, and with as many
// as the value of the tag may be long. Without a star it is the key.
func (p path) shortest() string {
	return p.text(p.domain.text, func(one *pattern, i int) string {
		if i == p.tagged && !one.fixed {
			return strings.Repeat("~", maxPart)
		}
		return one.shortest()
	})
}

// long returns a key of over 512 bytes in a short form: the path of the limit, with ~ for the text of each star.
// The sum of the whole key is before the ~ of the last pattern that has a star. The key fits the limit's pattern, and
// no pattern that the values did not fit: no piece of a pattern has a byte of what is between the pieces here.
func (p path) long(entries []*entry, whole []byte) string {
	var last *pattern
	for i, n := range p.nodes {
		if !n.key.fixed {
			last = &n.key
		}
		if !n.value.fixed && i != p.tagged {
			last = &n.value
		}
	}
	return p.text(p.domain.text, func(one *pattern, i int) string {
		switch {
		case i == p.tagged && !one.fixed: // its value chooses the partition
			return part(entries[i].GetValue())
		case one == last:
			return one.pieces[0] + markedSum(whole) + one.shortest()[len(one.pieces[0]):]
		}
		return one.shortest()
	})
}

// markedSum returns about 101 bits of the SHA-256, as long as all of it in hex, in characters that no pattern has.
func markedSum(whole []byte) string {
	var out []byte
	h := sha256.Sum256(whole)
	for _, half := range [][]byte{h[:8], h[8:16]} {
		for v, i := binary.BigEndian.Uint64(half), 0; i < 32; v, i = v/3, i+1 {
			out = append(out, ";=~"[v%3])
		}
	}
	return string(out)
}

// labels returns the labels of a limit in metrics. They are made of the values that were asked for: of all values if
// the limit is detailed, otherwise of those of the descriptors that say so (value_to_metric). Values that share a
// count share a label too. Without entries, all labels are as the configuration has them.
func (p path) labels(entries []*entry, detailed bool) []string {
	out := append(make([]string, 0, len(p.nodes)+1), p.domain.name)
	for i, n := range p.nodes {
		shared := n.value.fixed && len(n.value.pieces) > 1
		if entries == nil || shared || !detailed && !n.valueInLabel {
			out = append(out, n.label)
		} else {
			out = append(out, label(entries[i].GetKey(), entries[i].GetValue()))
		}
	}
	return out
}

// LabelsOf returns the labels of a descriptor that no configured limit was found for.
func LabelsOf(domain string, d *commonv3.RateLimitDescriptor) []string {
	out := []string{domain}
	for _, e := range d.GetEntries() {
		out = append(out, label(e.GetKey(), e.GetValue()))
	}
	return out
}

func label(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

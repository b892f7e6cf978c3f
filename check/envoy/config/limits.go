package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Limits are what one configuration says. They never change.
type Limits struct {
	tag     string
	domains map[string]*domain
	rules   *windows.Rules // none where no limit needs one
	count   int            // of limits, the unlimited and the zero ones among them
	shadow  bool           // no limit denies
	quota   bool           // all are quotas
	// warnings are fields of resources that nothing here knows.
	warnings []string
	dump     []string // a line for each limit
}

type domain struct {
	name, text string // text is how it stands in a key
	brings     bringing
	top        level
}

// level is what one depth of a configuration has, by the entry's key.
type level map[string]*keyed

type keyed struct {
	text  string           // the key as it stands in a key
	exact map[string]*node // value → node
	wild  []*node          // in the file's order
	any   *node            // the one without a value
}

// node is one descriptor of the configuration.
type node struct {
	key, value string
	// pieces are what stands around the stars of the value, as it stands in a key;
	// nil where it has none.
	pieces []string
	// fixed nodes write text for the value, whatever it was: an exact value, or a
	// pattern whose values share a count.
	fixed bool
	text  string
	limit *Limit // its Key is set where it is the same for all; nil: no limit
	label string // in metrics
	live  bool   // the label is made of the value that was asked for
	next  level
}

// Rules are the limits as rules, those first that decide first: the first that
// matches a key which Find gives is that limit's. Workers count and sweep by
// them. Not to be changed.
func (l *Limits) Rules() []*windows.Rule {
	return l.rules.List()
}

// Len is how many limits there are.
func (l *Limits) Len() int { return l.count }

// Has says whether anything is configured for a domain.
func (l *Limits) Has(domain string) bool { return l.domains[domain] != nil }

// Tag is the entry that stands in braces in keys, empty if none.
func (l *Limits) Tag() string { return l.tag }

// Shadow says that no limit denies, whatever it finds.
func (l *Limits) Shadow() bool { return l != nil && l.shadow }

// QuotaForAll says that all limits are quotas.
func (l *Limits) QuotaForAll() bool { return l != nil && l.quota }

// Dump gives a line for each limit, in the order of the configuration.
func (l *Limits) Dump() []string { return l.dump }

// Warnings are fields of resources that are not known here, and were passed over.
func (l *Limits) Warnings() []string { return l.warnings }

// Find gives the limit of a descriptor. It is false where there is none: an
// unknown domain, a path that is not configured or has no limit of its own, one
// that is longer or shorter than the configuration's. At each depth an exact
// value goes before patterns, these in the file's order before a key without
// value, and what was chosen is not taken back. In a known domain a limit in the
// descriptor itself overrides all that (see Override); one that ValidateOverride
// refuses is passed over.
func (l *Limits) Find(name string, d *commonv3.RateLimitDescriptor) (Limit, bool) {
	dom := l.domains[name]
	if dom == nil {
		return Limit{}, false
	}
	if d.GetLimit() != nil {
		if limit, err := override(name, d, l.tag, dom.brings); err == nil {
			return limit, true
		}
	}
	entries := d.GetEntries()
	if len(entries) == 0 || len(entries) > maxDepth {
		return Limit{}, false
	}
	var room [api.MaxKeyBytes]byte // so that most keys cost one allocation
	var path [maxDepth]*node
	buf, tagged, at := append(room[:0], dom.text...), -1, dom.top
	for i, e := range entries {
		k := at[e.GetKey()]
		if k == nil {
			return Limit{}, false
		}
		braces := tagged < 0 && l.tag != "" && e.GetKey() == l.tag
		buf = append(buf, '/')
		if braces {
			tagged = i
			buf = append(buf, '{')
		}
		buf = append(append(buf, k.text...), '=')
		from, n := len(buf), k.exact[e.GetValue()]
		if n == nil {
			buf = appendValue(buf, e.GetValue(), braces)
			if n = k.fit(buf[from:]); n == nil {
				return Limit{}, false
			}
		}
		if n.fixed {
			buf = append(buf[:from], n.text...)
		}
		if braces {
			buf = append(buf, '}')
		}
		path[i], at = n, n.next
	}
	found := path[len(entries)-1].limit
	if found == nil {
		return Limit{}, false
	}
	limit := *found
	if limit.Labels == nil {
		limit.Labels = labels(dom.name, entries, path[:len(entries)], limit.Detailed)
	}
	switch {
	case limit.Key != "":
	case len(buf) <= api.MaxKeyBytes:
		limit.Key = string(buf)
	default:
		limit.Key = long(dom, entries, path[:len(entries)], tagged, buf)
	}
	return limit, true
}

// fit gives the first pattern that a value fits, as it stands in a key. Patterns
// are compared with the values as written, as the patterns of rules are, so both always agree.
func (k *keyed) fit(written []byte) *node {
	for _, n := range k.wild {
		if fits(n.pieces, written) {
			return n
		}
	}
	return k.any
}

// fits says whether the pieces stand in text in their order, the first at its
// beginning, the last at its end, without sharing a byte.
func fits(pieces []string, text []byte) bool {
	first, last := pieces[0], pieces[len(pieces)-1]
	if len(text) < len(first)+len(last) || string(text[:len(first)]) != first ||
		string(text[len(text)-len(last):]) != last {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, p := range pieces[1 : len(pieces)-1] {
		i := bytes.Index(text, []byte(p))
		if i < 0 {
			return false
		}
		text = text[i+len(p):]
	}
	return true
}

// long is a key of over 512 bytes in a fixed form: the path of the limit with ~ for
// what each star stands for, the last of them after the sum of the whole key. It
// fits the limit's pattern, and no pattern that the values did not fit: no piece
// of a pattern has a byte of what stands between its own.
func long(dom *domain, entries []*commonv3.RateLimitDescriptor_Entry, path []*node, tagged int, whole []byte) string {
	last := -1
	for i, n := range path {
		if !n.fixed && i != tagged {
			last = i
		}
	}
	key := []byte(dom.text)
	for i, n := range path {
		open, shut := "", ""
		if i == tagged {
			open, shut = "{", "}"
		}
		key = append(append(appendPart(append(key, "/"+open...), n.key), '='), n.text...)
		switch {
		case n.fixed:
		case i == tagged:
			key = appendPart(key, entries[i].GetValue())
		default:
			pieces := n.around()
			key = append(key, pieces[0]...)
			if i == last {
				key = append(key, markedSum(whole)...)
			}
			key = append(key, "~"+strings.Join(pieces[1:], "~")...)
		}
		key = append(key, shut...)
	}
	return string(key)
}

// markedSum is about 101 bits of the SHA-256, as long as all of it in hex, in
// characters that stand in no pattern.
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

// around gives the pieces of the value's pattern, which for a key without value is *.
func (n *node) around() []string {
	if n.pieces == nil {
		return []string{"", ""}
	}
	return n.pieces
}

// leastBytes is what a starred value takes in a long key, beside the sum.
func (n *node) leastBytes() int { return len(strings.Join(n.around(), "~")) }

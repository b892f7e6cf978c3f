package rls

import (
	"bytes"
	"crypto/sha256"
	"math/big"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Limits are what one configuration says. They never change.
type Limits struct {
	tag     string
	domains map[string]*domain
	rules   *windows.Rules // nil where no limit needs one
	count   int            // of limits, the unlimited and the zero ones among them
}

type domain struct {
	name, text string // text is how it stands in a key
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
	next  level
}

// Rules are the limits as rules, those first that decide first: the first that
// matches a key which Find gives is that limit's. Workers count and sweep by
// them. Not to be changed.
func (l *Limits) Rules() []*windows.Rule {
	if l.rules == nil {
		return nil
	}
	return l.rules.List()
}

// Len is how many limits there are.
func (l *Limits) Len() int { return l.count }

// Has says whether anything is configured for a domain.
func (l *Limits) Has(domain string) bool { return l.domains[domain] != nil }

// Tag is the entry that stands in braces in keys, empty if none.
func (l *Limits) Tag() string { return l.tag }

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
		if limit, err := Override(name, d, l.tag); err == nil {
			return limit, true
		}
	}
	entries := d.GetEntries()
	if len(entries) == 0 || len(entries) > MaxDepth {
		return Limit{}, false
	}
	var room [api.MaxKeyBytes]byte // so that most keys cost one allocation
	var path [MaxDepth]*node
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
	switch {
	case limit.Key != "":
	case len(buf) <= api.MaxKeyBytes:
		limit.Key = string(buf)
	default:
		limit.Key = l.long(dom, entries, path[:len(entries)], tagged, buf, limit.Rule)
	}
	return limit, true
}

// fit gives the first pattern that a value fits, as it stands in a key. Patterns
// are held against what is written, as rules are: so both always agree.
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
	if len(text) < len(first)+len(last) || string(text[:len(first)]) != first || string(text[len(text)-len(last):]) != last {
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

// long writes a key of over 512 bytes so that it still fits its rule, and no rule
// that its values did not fit: what is fixed stands whole, what stars stand for
// is cut, and the last of these ends in the SHA-256 of the whole key. Digits of
// the sum could be what a pattern looks for; then it is written in characters
// that stand in no pattern.
func (l *Limits) long(dom *domain, entries []*commonv3.RateLimitDescriptor_Entry, path []*node, tagged int, whole []byte, rule *windows.Rule) string {
	key := shorten(dom, entries, path, tagged, sum(whole))
	if rule != nil && l.rules.Match(key) != rule {
		key = shorten(dom, entries, path, tagged, markedSum(whole))
	}
	return key
}

// markedSum is about 101 bits of the SHA-256, as long as sum.
func markedSum(whole []byte) string {
	h := sha256.Sum256(whole)
	n, three := new(big.Int).SetBytes(h[:]), big.NewInt(3)
	out := []byte{'~'}
	for range sumBytes - 1 {
		digit := new(big.Int)
		n.DivMod(n, three, digit)
		out = append(out, ";=~"[digit.Int64()])
	}
	return string(out)
}

func shorten(dom *domain, entries []*commonv3.RateLimitDescriptor_Entry, path []*node, tagged int, sum string) string {
	last, left := -1, api.MaxKeyBytes-len(sum)-len(dom.text)
	for i, n := range path {
		if !n.fixed && i != tagged {
			last = i
		}
		left -= n.skeleton(entries[i].GetValue(), i == tagged)
	}
	buf := []byte(dom.text)
	for i, n := range path {
		buf = append(buf, '/')
		if i == tagged {
			buf = append(buf, '{')
		}
		buf = append(appendText(buf, n.key), '=')
		value := appendValue(nil, entries[i].GetValue(), i == tagged)
		pieces := n.around()
		fill := len(value) - bytesOf(pieces)
		switch {
		case n.fixed:
			buf = append(buf, n.text...)
		case i == tagged || i != last && fill <= left:
			buf = append(buf, value...)
			if i != tagged {
				left -= fill
			}
		default:
			// The marks between pieces keep a longer piece of another pattern from
			// standing across them.
			kept := cut(star(value, pieces), left)
			left -= len(kept)
			buf = append(append(buf, pieces[0]...), kept...)
			if i == last {
				buf = append(buf, sum...)
			} else {
				buf = append(buf, '~')
			}
			buf = append(buf, strings.Join(pieces[1:], "~")...)
		}
		if i == tagged {
			buf = append(buf, '}')
		}
	}
	return string(buf)
}

// star gives what the first star of a pattern stands for in a value that fits it.
func star(value []byte, pieces []string) []byte {
	value = value[len(pieces[0]) : len(value)-len(pieces[len(pieces)-1])]
	if len(pieces) > 2 {
		value, _, _ = bytes.Cut(value, []byte(pieces[1]))
	}
	return value
}

// around gives the pieces of the value's pattern, which for a key without value is *.
func (n *node) around() []string {
	if n.pieces == nil {
		return []string{"", ""}
	}
	return n.pieces
}

// skeleton is how many bytes of a key the node takes at least.
func (n *node) skeleton(value string, tag bool) int {
	size := len("/=") + len(appendText(nil, n.key))
	if tag {
		size += len("{}")
	}
	switch {
	case n.fixed:
		return size + len(n.text)
	case tag:
		return size + len(appendValue(nil, value, true))
	}
	return size + cutBytes(n.around())
}

// cutBytes is what a cut value takes beside what is kept of it.
func cutBytes(pieces []string) int { return bytesOf(pieces) + len(pieces) - 1 }

func bytesOf(pieces []string) int {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	return size
}

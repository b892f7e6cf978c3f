package config

import (
	"bytes"
	"fmt"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Limits are the limits of one configuration. They never change.
type Limits struct {
	tag     string
	domains map[string]*domain
	// rules are the limits as rules; there are none if no limit needs one. The rules that decide first come first: if
	// Find returns a key, the first rule that matches it is the rule of that limit. Workers count and sweep by these
	// rules.
	rules  *windows.Rules
	shadow bool // no limit denies
	quota  bool // all are quotas
	// warnings are fields of resources that are not known here.
	warnings []string
	// refused are descriptors and domains of resources that cannot be counted; all else is in force.
	refused []error
	dump    []string // a line for each limit, including the unlimited and the zero ones
}

type domain struct {
	name, text string         // text is its form in a key
	brought    broughtOptions // for the limits that descriptors bring
	top        level
}

// level has the descriptors of one depth of a configuration.
type level struct {
	// texts: key and value as they are configured → node; a pattern is found by its own text too. The value is empty
	// for a key without a value.
	texts    map[[2]string]*node
	patterns []*node // those whose key or value has a star, in the file's order
}

// node is one descriptor of the configuration.
type node struct {
	key, value   pattern
	limit        *Limit // its Key is set if it is the same for all; nil: no limit
	compact      string // the beginning of the limit's keys if their text would be too long; empty: it is not
	label        string // in metrics
	valueInLabel bool   // the label is made of the value that was asked for (value_to_metric)
	next         level
}

// pattern is what a descriptor has as key or value.
type pattern struct {
	// pieces are the texts around the stars, in the form that keys have; nil if the pattern has no star.
	pieces []string
	// fixed: all that fits the pattern has the same text in a key. It is an exact text, or values that share a count.
	fixed bool
	text  string
}

// Len returns how many limits there are.
func (l *Limits) Len() int { return len(l.dump) }

// Shadow reports whether no limit denies, whatever it finds.
func (l *Limits) Shadow() bool { return l != nil && l.shadow }

// QuotaForAll reports whether all limits are quotas.
func (l *Limits) QuotaForAll() bool { return l != nil && l.quota }

// Rules returns the limits as rules.
func (l *Limits) Rules() *windows.Rules { return l.rules }

// Dump returns a line for each limit, in the order of the configuration.
func (l *Limits) Dump() []string { return l.dump }

// Warnings returns the fields of resources that are not known here, and were ignored.
func (l *Limits) Warnings() []string { return l.warnings }

// ErrNoLimits says that no limits have come yet.
var ErrNoLimits = fmt.Errorf("no limits yet: %w", api.ErrUnavailable)

// mostRefused bounds what an error lists.
const mostRefused = 5

// Refused returns an error about the limits of resources that cannot be counted; nil: there are none. All others are
// in force.
func (l *Limits) Refused() error {
	n := len(l.refused)
	switch n {
	case 0:
		return nil
	case 1:
		return l.refused[0]
	}
	text := ""
	for _, err := range l.refused[:min(n, mostRefused)] {
		text += "; " + err.Error()
	}
	return fmt.Errorf("%d mistakes: %s", n, strings.TrimPrefix(text, "; "))
}

// Find returns the limit of a descriptor, or false if the descriptor has no limit: the domain is unknown, the path is
// not configured or has no limit, or it is longer or shorter than the paths of the configuration. At each
// depth, an exact value is preferred to patterns, and patterns, in the file's order, to a key without a value. A
// choice is final: it is not changed if the next depth finds nothing. A pattern is a key or a value with a star; its
// own text counts as exact. In a known domain, a limit in the descriptor itself is preferred to all of these
// (broughtLimit). One that ValidateBrought refuses is ignored.
func (l *Limits) Find(name string, d *commonv3.RateLimitDescriptor) (Limit, bool) {
	dom := l.domains[name]
	if dom == nil {
		return Limit{}, false
	}
	if d.GetLimit() != nil {
		if limit, err := broughtLimit(name, d, l.tag, dom.brought); err == nil {
			return limit, true
		}
	}
	entries := d.GetEntries()
	if len(entries) == 0 || len(entries) > maxDepth {
		return Limit{}, false
	}
	var room [api.MaxKeyBytes]byte // so that most keys cost one allocation
	var nodes [maxDepth]*node
	buf, at := append(room[:0], dom.text...), dom.top
	p := path{domain: dom, tagged: -1}
	for i, e := range entries {
		n := at.find(e)
		if n == nil {
			return Limit{}, false
		}
		if p.tagged < 0 && l.tag != "" && e.GetKey() == l.tag {
			p.tagged = i
		}
		buf = n.appendEntry(buf, e, i == p.tagged)
		nodes[i], at = n, n.next
	}
	p.nodes = nodes[:len(entries)]
	last := nodes[len(entries)-1]
	if last.limit == nil {
		return Limit{}, false
	}
	limit := *last.limit
	if limit.Labels == nil {
		limit.Labels = p.labels(entries, limit.Detailed)
	}
	switch {
	case limit.Key != "":
	case last.compact != "": // after the sum of the path come the tag and the sum of the whole key
		limit.Key = last.compact + tagIn(string(buf)) + markedSum(buf)
	case len(buf) <= api.MaxKeyBytes:
		limit.Key = string(buf)
	default:
		limit.Key = p.long(entries, buf)
	}
	return limit, true
}

// find returns the descriptor of an entry, or nil. It compares patterns with keys and values as written, as rules do,
// so both always agree.
func (l level) find(e *entry) *node {
	if e.GetValue() != "" {
		if n := l.texts[[2]string{e.GetKey(), e.GetValue()}]; n != nil {
			return n
		}
	}
	if len(l.patterns) > 0 {
		var room [api.MaxKeyBytes]byte
		buf := appendText(room[:0], e.GetValue())
		value := len(buf)
		buf = appendText(buf, e.GetKey())
		for _, n := range l.patterns {
			if fits(n.key.pieces, buf[value:]) && fits(n.value.pieces, buf[:value]) {
				return n
			}
		}
	}
	return l.texts[[2]string{e.GetKey(), ""}]
}

// appendEntry adds the form that an entry has in a counted key.
func (n *node) appendEntry(buf []byte, e *entry, tag bool) []byte {
	open, shut := "", ""
	if tag {
		open, shut = "{", "}"
	}
	buf = n.key.append(append(append(buf, '/'), open...), e.GetKey(), false)
	return append(n.value.append(append(buf, '='), e.GetValue(), tag), shut...)
}

// append adds to buf the form that s, a key or a value of an entry, has in a counted key.
func (p *pattern) append(buf []byte, s string, tag bool) []byte {
	if p.fixed {
		return append(buf, p.text...)
	}
	if tag {
		return appendPart(buf, s)
	}
	return appendText(buf, s)
}

// fits reports whether text has the pieces in their order, the first at its beginning, the last at its end, without
// sharing a byte. A single piece must be the whole text.
func fits(pieces []string, text []byte) bool {
	if len(pieces) == 1 {
		return pieces[0] == string(text)
	}
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

// glob returns the pattern as a rule has it.
func (p *pattern) glob() string {
	if p.fixed {
		return escapeGlob(p.text)
	}
	globs := make([]string, len(p.pieces))
	for i, piece := range p.pieces {
		globs[i] = escapeGlob(piece)
	}
	return strings.Join(globs, "*")
}

// shortest returns the shortest text that the pattern has in a key: with a ~ for the text of each star.
func (p *pattern) shortest() string {
	if p.fixed {
		return p.text
	}
	return strings.Join(p.pieces, "~")
}

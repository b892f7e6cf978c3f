package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// builder makes Limits from files.
type builder struct {
	options
	limits *Limits
	rules  []placed
}

// placed is a rule and how deep its descriptor stands.
type placed struct {
	rule  *windows.Rule
	limit *Limit
	depth int
}

// walk is where the builder is in a domain: what leads there.
type walk struct {
	depth  int
	match  string // the pattern of keys so far
	text   string // the same as text, while all is fixed
	fixed  bool
	dotted string // as envoyproxy/ratelimit names it in its statistics
	plain  string // for the rule's name
	exact  bool   // plain says the whole path
	labels []string
	live   bool // a label is made of the value asked for
	size   int  // the fewest bytes of a key
	tagged bool
}

func build(files []*file, o options) (*Limits, error) {
	b := &builder{options: o, limits: &Limits{tag: o.tag, shadow: o.shadow, quota: o.quota,
		domains: map[string]*domain{}}}
	b.onDeny = cmp.Or(o.onDeny, windows.OnDenySkip)
	from := map[string]*file{} // domain → the first file that has it
	for _, f := range files {
		own(f, f.descriptors)
		b.limits.warnings = append(b.limits.warnings, f.unknown...)
		first := from[f.domain]
		switch {
		case first == nil:
			from[f.domain] = &file{Document: f.Document, name: f.name, domain: f.domain, onDeny: f.onDeny,
				descriptors: f.descriptors}
		case !o.merge:
			return nil, f.ErrorAt("domain", "domain %q: %s has it already; want each domain in one file, or "+
				"--rls-merge-domains", f.domain, first.name)
		default:
			first.descriptors = slices.Concat(first.descriptors, f.descriptors)
			first.onDeny = cmp.Or(first.onDeny, f.onDeny)
		}
	}
	for _, f := range files {
		if err := b.domain(from[f.domain]); err != nil {
			return nil, err
		}
	}
	return b.limits, b.finish()
}

// own says of descriptors which file they stand in: those of several can be in one domain.
func own(f *file, list []*descriptor) {
	for _, r := range list {
		r.in = f
		own(f, r.nested)
	}
}

// domain makes what one domain has, once.
func (b *builder) domain(f *file) (err error) {
	if b.limits.domains[f.domain] != nil {
		return nil
	}
	dom := &domain{name: f.domain, text: part(f.domain), brings: bringing{
		onDeny: cmp.Or(windows.OnDeny(f.onDeny), b.onDeny), shadow: b.shadow, quota: b.quota}}
	b.limits.domains[f.domain] = dom
	at := walk{match: escapeGlob(dom.text), text: dom.text, fixed: true, dotted: f.domain, plain: f.domain,
		exact: isWord(f.domain), size: len(dom.text), labels: []string{f.domain}}
	dom.top, err = b.level(at, f.descriptors)
	return err
}

// finish makes the rules, deeper ones first: no key of a shallow limit has as
// many slashes, while a star of a shallow one would take those of a deep key.
// Those of one depth stand in the order in which Find prefers their descriptors.
func (b *builder) finish() error {
	if len(b.rules) == 0 {
		b.limits.rules = new(windows.Rules)
		return nil
	}
	slices.SortStableFunc(b.rules, func(x, y placed) int { return cmp.Compare(y.depth, x.depth) })
	// Beside `value: "*"` a key without value is never found.
	seen := map[string]bool{}
	b.rules = slices.DeleteFunc(b.rules, func(p placed) bool {
		twice := seen[p.rule.Match]
		seen[p.rule.Match] = true
		return twice
	})
	list := make([]*windows.Rule, len(b.rules))
	for i, p := range b.rules {
		list[i] = p.rule
	}
	rules, err := windows.NewRules(list)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	b.limits.rules = rules
	for i, rule := range rules.List() {
		b.rules[i].limit.Plan = rules.PlanOf(rule)
	}
	return nil
}

// rank is the order in which Find tries the descriptors of one level.
func (r *descriptor) rank() int {
	switch {
	case r.value == "":
		return 2
	case strings.Contains(r.value, "*"):
		return 1
	}
	return 0
}

func (b *builder) level(at walk, list []*descriptor) (level, error) {
	seen := map[[2]string]*descriptor{}
	for _, r := range list {
		id := [2]string{r.key, r.value}
		if first := seen[id]; first != nil {
			return nil, r.in.ErrorAt(r.at+".key", "key %q with value %q stands here twice; first in %s", r.key,
				r.value, r.in.place(first))
		}
		seen[id] = r
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(x, y *descriptor) int { return cmp.Compare(x.rank(), y.rank()) })
	out := level{}
	for _, r := range list {
		n, err := b.node(at, r)
		if err != nil {
			return nil, err
		}
		k := out[r.key]
		if k == nil {
			k = &keyed{text: part(r.key), exact: map[string]*node{}}
			out[r.key] = k
		}
		switch r.rank() {
		case 0:
			k.exact[r.value] = n
		case 1:
			k.wild = append(k.wild, n)
		default:
			k.any = n
		}
	}
	return out, nil
}

// node makes the node of a descriptor, what is below it, and its limit.
func (b *builder) node(at walk, r *descriptor) (*node, error) {
	tag := !at.tagged && b.limits.tag != "" && r.key == b.limits.tag
	n := &node{key: r.key, value: r.value, label: r.key, live: r.live && !r.share && r.rank() > 0}
	if r.value != "" {
		n.label += "_" + r.value
	}
	glob := "*"
	switch r.rank() {
	case 0:
		n.fixed, n.text = true, part(r.value)
		glob = escapeGlob(n.text)
	case 1:
		n.pieces = strings.Split(r.value, "*")
		var globs []string
		for i, p := range n.pieces {
			n.pieces[i] = string(appendText(nil, p))
			globs = append(globs, escapeGlob(n.pieces[i]))
		}
		glob = strings.Join(globs, "*")
		if r.share {
			n.fixed, n.text = true, strings.Join(n.pieces, "*")
			glob = escapeGlob(n.text)
		}
		if most := maxPart - sumBytes; tag && (len(n.pieces[0]) > most ||
			strings.Trim(r.value[strings.IndexByte(r.value, '*'):], "*") != "") {
			return nil, r.in.ErrorAt(r.at+".value",
				"value %q: the entry that --rls-tag names is shortened where it is long; want its only * at the "+
					"end, after at most %d bytes", r.value, most)
		}
	}
	down := at.to(r, n, tag, glob)
	if err := b.addLimit(down, r, n); err != nil {
		return nil, err
	}
	var err error
	n.next, err = b.level(down, r.nested)
	return n, err
}

// to is the walk one descriptor further.
func (at walk) to(r *descriptor, n *node, tag bool, glob string) walk {
	key, open, shut := part(r.key), "", ""
	if tag {
		open, shut = "{", "}"
	}
	at.depth++
	at.tagged = at.tagged || tag
	at.labels = append(slices.Clip(at.labels), n.label)
	at.live = at.live || n.live
	at.match += "/" + open + escapeGlob(key) + "=" + glob + shut
	at.fixed = at.fixed && n.fixed
	at.text += "/" + open + key + "=" + n.text + shut
	at.size += len("/="+open+shut+key) + len(n.text)
	switch {
	case n.fixed:
	case tag:
		at.size += maxPart
	default:
		at.size += n.leastBytes()
	}
	at.dotted += "." + r.key
	at.plain += "--" + r.key
	at.exact = at.exact && isWord(r.key) && (r.value == "" || isWord(r.value))
	if r.value != "" {
		at.dotted += "_" + r.value
		at.plain += "-" + r.value
	}
	return at
}

func (b *builder) addLimit(at walk, r *descriptor, n *node) error {
	if r.limit == nil {
		return nil
	}
	if most := api.MaxKeyBytes - sumBytes; at.size > most {
		return r.in.ErrorAt(r.at,
			"the limit %s is counted by keys of at least %d bytes: want at most %d; keys and values are too long",
			api.Shorten(at.dotted), at.size, most)
	}
	b.limits.count++
	b.limits.dump = append(b.limits.dump, dumped(at.dotted, r))
	l := &Limit{
		Name: cmp.Or(r.limit.name, at.dotted), Named: r.limit.name != "", Replaces: r.limit.replaces,
		Unlimited: r.limit.unlimited, Shadow: r.shadow, Quota: r.quota || b.quota, Watched: b.shadow,
		Metadata: r.metadata, Detailed: r.detailed,
	}
	if !r.detailed && !at.live {
		l.Labels = at.labels
	}
	n.limit = l
	if at.fixed {
		l.Key = at.text
	}
	if l.Unlimited {
		return nil
	}
	per, unit, err := r.limit.span()
	if err != nil {
		return r.in.ErrorAt(r.at+".rate_limit", "%w", err) // check has found it before
	}
	l.PerUnit, l.Unit, l.Multiplier = uint32(r.limit.perUnit), unit, uint32(r.limit.multiplier)
	if l.DenyAll = l.PerUnit == 0; l.DenyAll {
		return nil
	}
	window, err := b.window(int64(l.PerUnit), r.limit.multiplier, unit, per)
	if err != nil {
		return r.in.ErrorAt(r.at+".rate_limit", "%w", err)
	}
	b.rules = append(b.rules, placed{limit: l, depth: at.depth, rule: &windows.Rule{
		Name: ruleName(at), Match: at.match, Algorithm: b.algorithm, Hold: windows.DefaultHold,
		Windows: []windows.Window{window}, Shadow: r.shadow || l.Quota || b.shadow,
		Exclusive: true, Unlevelled: b.unlevelled,
		OnError: onError, OnDeny: cmp.Or(windows.OnDeny(r.onDeny), windows.OnDeny(r.in.onDeny), b.onDeny),
	}})
	return nil
}

// dumped is a limit as the debug port of envoyproxy/ratelimit shows it.
func dumped(path string, r *descriptor) string {
	if r.limit.unlimited {
		return path + ": unlimited"
	}
	unit := strings.ToUpper(r.limit.unit)
	if r.limit.multiplier > 1 {
		unit += fmt.Sprintf(" unit_multiplier=%d", r.limit.multiplier)
	}
	return fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t", path, unit,
		r.limit.perUnit, r.shadow, r.quota)
}

// escapeGlob takes text out of a pattern's language.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(s)
}

// ruleName names a rule by its path, domain--key-value--key. One that does not
// say the whole path (other characters than a-z and 0-9, too long) ends in a
// hash of the pattern. So a name depends on nothing but its own path, and stays
// while limits beside it come and go.
func ruleName(at walk) string {
	const most, hashed = 64, 8
	if at.exact && len(at.plain) <= most {
		return at.plain
	}
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}, at.plain)
	h := sha256.Sum256([]byte(at.match))
	return name[:min(len(name), most-hashed-1)] + "-" + hex.EncodeToString(h[:])[:hashed]
}

func isWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') &&
			(c < '0' || c > '9')
	})
}

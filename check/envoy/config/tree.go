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
	Options
	limits  *Limits
	rules   []placed
	literal int // above 0 below a pattern's own text, whose limits are counted with the pattern
}

// placed is a rule and how deep its descriptor is.
type placed struct {
	rule  *windows.Rule
	limit *Limit
	depth int
}

// walk is where the builder is in a domain: the path that leads there, and the descriptors of its nodes.
type walk struct {
	path
	list []*descriptor
}

func build(files []*file, o Options) (*Limits, error) {
	b := &builder{Options: o, limits: &Limits{tag: o.Tag, shadow: o.Shadow, quota: o.Quota,
		domains: map[string]*domain{}}}
	b.OnDeny = cmp.Or(o.OnDeny, string(windows.OnDenySkip))
	from := map[string]*file{} // domain → the first file that has it
	var domains []*file
	for _, f := range files {
		b.limits.warnings = append(b.limits.warnings, f.unknown...)
		b.limits.refused = append(b.limits.refused, f.refused...)
		first := from[f.domain]
		switch {
		case first == nil:
			from[f.domain] = new(*f)
			domains = append(domains, from[f.domain])
		case !o.MergeDomains:
			if err := b.refuse(f, f.ErrorAt("domain", "domain %q: %s has it already; want each domain in one file, "+
				"or --rls-merge-domains", f.domain, first.name)); err != nil {
				return nil, err
			}
		default:
			first.descriptors = slices.Concat(first.descriptors, f.descriptors)
			first.onDeny = cmp.Or(first.onDeny, f.onDeny)
		}
	}
	for _, f := range domains {
		if err := b.domain(f); err != nil {
			return nil, err
		}
	}
	return b.limits, b.finish()
}

// refuse handles a mistake. In a file it returns the error, and nothing is loaded. In a resource it records the error,
// and only the part with the mistake is left out.
func (b *builder) refuse(f *file, err error) error {
	if f.Document != nil {
		return err
	}
	if b.literal == 0 {
		b.limits.refused = append(b.limits.refused, err)
	}
	return nil
}

// domain makes the levels of one domain.
func (b *builder) domain(f *file) (err error) {
	dom := &domain{name: f.domain, text: part(f.domain), brought: broughtOptions{
		onDeny: windows.OnDeny(cmp.Or(f.onDeny, b.OnDeny)), shadow: b.Shadow, quota: b.Quota}}
	b.limits.domains[f.domain] = dom
	dom.top, err = b.level(walk{path: path{domain: dom, tagged: -1}}, f.descriptors)
	return err
}

// finish makes the rules. Those of compact keys come first, and then deeper ones before shallower ones: no key of a
// shallow limit has as many slashes, while a star of a shallow limit would take the slashes of a deep key. Rules of
// one depth are in the order in which Find prefers their descriptors.
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

// rank returns the order in which Find tries the descriptors of one level.
func (r *descriptor) rank() int {
	switch {
	case strings.Contains(r.key+r.value, "*"):
		return 1
	case r.value == "":
		return 2
	}
	return 0
}

func (b *builder) level(at walk, list []*descriptor) (level, error) {
	out := level{texts: map[[2]string]*node{}}
	list, err := b.withoutDuplicates(list)
	if err != nil {
		return out, err
	}
	slices.SortStableFunc(list, func(x, y *descriptor) int { return cmp.Compare(x.rank(), y.rank()) })
	b.literal++
	for _, r := range hidden(list) {
		if err := b.place(&out, at, r, true); err != nil {
			return out, err
		}
	}
	b.literal--
	for _, r := range list {
		if err := b.place(&out, at, r, false); err != nil {
			return out, err
		}
	}
	return out, nil
}

// withoutDuplicates leaves out descriptors that the level has already.
func (b *builder) withoutDuplicates(list []*descriptor) (out []*descriptor, err error) {
	seen := map[[2]string]*descriptor{}
	for _, r := range list {
		id := [2]string{r.key, r.value}
		if first := seen[id]; first == nil {
			seen[id] = r
			out = append(out, r)
		} else if err := b.refuse(r.in, r.in.ErrorAt(r.at+".key", "key %q with value %q is given twice; first in %s",
			r.key, r.value, r.in.place(first))); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// hidden returns the patterns whose own text an earlier pattern takes. A request can have that text: Envoy Gateway
// names a route without a host by a *. The text belongs to the pattern itself, because an exact text is preferred to
// patterns. So it gets rules of its own, which come before those of the earlier pattern.
func hidden(list []*descriptor) (out []*descriptor) {
	var keys, values []pattern
	for _, r := range list {
		if r.rank() != 1 {
			continue
		}
		key, value := appendText(nil, r.key), appendText(nil, r.value)
		for i := range keys {
			if r.value != "" && fits(keys[i].pieces, key) && fits(values[i].pieces, value) {
				out = append(out, r)
				break
			}
		}
		keys, values = append(keys, patternOf(r.key, false)), append(values, patternOf(r.value, false))
	}
	return out
}

// place adds a descriptor to a level. With literal it adds only the descriptor's own text.
func (b *builder) place(l *level, at walk, r *descriptor, literal bool) error {
	n, err := b.node(at, r, literal)
	if n == nil || err != nil {
		return err
	}
	text := [2]string{r.key, r.value}
	isPattern := r.rank() == 1 && !literal
	if isPattern {
		l.patterns = append(l.patterns, n)
	}
	if !isPattern || r.value != "" && l.texts[text] == nil {
		l.texts[text] = n
	}
	return nil
}

// patternOf reads a key or a value. An empty one fits any text.
func patternOf(s string, share bool) pattern {
	if s == "" {
		s = "*"
	}
	pieces := strings.Split(s, "*")
	for i := range pieces {
		pieces[i] = string(appendText(nil, pieces[i]))
	}
	p := pattern{pieces: pieces}
	switch {
	case len(pieces) == 1:
		p.fixed, p.text = true, part(s)
	case share:
		p.fixed, p.text = true, strings.Join(pieces, "*")
	}
	return p
}

// node makes the node of a descriptor, what is below it, and its limit; nil if it is refused.
func (b *builder) node(at walk, r *descriptor, literal bool) (*node, error) {
	n := &node{key: patternOf(r.key, false), value: patternOf(r.value, r.share), label: label(r.key, r.value),
		valueInLabel: r.valueInLabel && !r.share && r.rank() > 0}
	if r.share && len(n.key.pieces) > 1 { // under another key, the same text can have its own count
		n.value.text = strings.Join(n.value.pieces, "%*")
	}
	if err := b.checkTag(at, r, n); err != nil {
		return nil, b.refuse(r.in, err)
	}
	if literal {
		n.key = pattern{fixed: true, text: part(r.key)}
		n.value = pattern{fixed: true, text: part(r.value)}
	}
	down := at.to(r, n, at.tagged < 0 && b.limits.tag != "" && r.key == b.limits.tag)
	if err := b.addLimit(down, r, n); err != nil {
		if err = b.refuse(r.in, err); err != nil {
			return nil, err
		}
		n.limit = nil
	}
	var err error
	n.next, err = b.level(down, r.nested)
	return n, err
}

// checkTag refuses patterns that could be in braces, but would not be found by the text in the braces.
func (b *builder) checkTag(at walk, r *descriptor, n *node) error {
	if at.tagged >= 0 || b.limits.tag == "" || !fits(n.key.pieces, appendText(nil, b.limits.tag)) {
		return nil
	}
	if len(n.key.pieces) > 1 {
		return r.in.ErrorAt(r.at+".key", "key %q takes the entry %q that --rls-tag names: want that key without a *",
			r.key, b.limits.tag)
	}
	most := maxPart - sumBytes
	if star := strings.IndexByte(r.value, '*'); star >= 0 &&
		(len(n.value.pieces[0]) > most || strings.Trim(r.value[star:], "*") != "") {
		return r.in.ErrorAt(r.at+".value", "value %q: the entry that --rls-tag names is shortened where it is long; "+
			"want its only * at the end, after at most %d bytes", r.value, most)
	}
	return nil
}

// to returns the walk one descriptor further.
func (at walk) to(r *descriptor, n *node, tag bool) walk {
	if tag {
		at.tagged = len(at.nodes)
	}
	at.list, at.nodes = append(slices.Clip(at.list), r), append(slices.Clip(at.nodes), n)
	return at
}

// compact returns the beginning of the keys of a limit whose own text leaves no room in a key: the domain, the
// SHA-256 of its pattern, and as much of the path as there is room for, for people. No other key begins like this,
// because no written text begins with ~. The tag, of at most tagBytes, follows and, if a star is in the path, the sum
// of the whole key.
func (at walk) compact(match string, tagBytes int) string {
	const domainBytes, pathBytes = 63, 128
	begin := string(cut([]byte(at.domain.text), domainBytes)) + "/" + sum([]byte(match)) + "/"
	path := appendText(nil, strings.Join(at.labels(nil, false)[1:], "."))
	room := api.MaxKeyBytes - sumBytes - len(begin) - tagBytes
	return begin + string(cut(path, min(room, pathBytes)))
}

func (b *builder) addLimit(at walk, r *descriptor, n *node) error {
	if r.limit == nil {
		return nil
	}
	labels := at.labels(nil, false)
	dotted := strings.Join(labels, ".")
	if b.literal == 0 {
		b.limits.dump = append(b.limits.dump, dumpLine(dotted, r))
	}
	l := &Limit{
		Name: cmp.Or(r.limit.name, dotted), Named: r.limit.name != "", Replaces: r.limit.replaces,
		Unlimited: r.limit.unlimited, Shadow: r.shadow, Quota: r.quota || b.Quota, Watched: b.Shadow,
		Metadata: r.metadata, Detailed: r.detailed,
	}
	if !r.detailed && !slices.ContainsFunc(at.nodes, func(n *node) bool { return n.valueInLabel }) {
		l.Labels = labels
	}
	pattern := at.text(escapeGlob(at.domain.text), func(one *pattern, _ int) string { return one.glob() })
	key, match, depth := at.shortest(), pattern, len(at.nodes)
	if len(key) > api.MaxKeyBytes-sumBytes {
		tag := tagIn(key)
		n.compact = at.compact(pattern, len(tag))
		key, match, depth = n.compact+tag, escapeGlob(n.compact)+"*", maxDepth+1
	}
	n.limit = l
	if !slices.ContainsFunc(at.nodes, func(n *node) bool { return !n.key.fixed || !n.value.fixed }) {
		l.Key, match = key, escapeGlob(key)
	}
	if l.Unlimited {
		return nil
	}
	l.PerUnit, l.Unit, l.Multiplier = uint32(r.limit.perUnit), r.limit.wire, uint32(r.limit.multiplier)
	if l.DenyAll = l.PerUnit == 0; l.DenyAll {
		return nil
	}
	window, err := b.window(r.limit)
	if err != nil {
		return r.in.ErrorAt(r.at+".rate_limit", "%w", err)
	}
	b.rules = append(b.rules, placed{limit: l, depth: depth, rule: &windows.Rule{
		Name: ruleName(at, pattern), Match: match, Algorithm: b.Algorithm, Hold: windows.DefaultHold,
		Windows: []windows.Window{window}, Shadow: r.shadow || l.Quota || b.Shadow,
		Exclusive: true, Unlevelled: b.Unlevelled,
		OnError: onError, OnDeny: windows.OnDeny(cmp.Or(r.onDeny, r.in.onDeny, b.OnDeny)),
	}})
	return nil
}

// dumpLine returns a limit as the debug port of envoyproxy/ratelimit shows it.
func dumpLine(path string, r *descriptor) string {
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

// escapeGlob escapes the characters of a text that mean something in a pattern.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(s)
}

// ruleName names a rule by its path, domain--key-value--key. A name that does not have the whole path (other
// characters than a-z and 0-9, too long) ends in a hash of the pattern. So a name depends only on its own path, and
// stays the same when other limits come and go.
func ruleName(at walk, pattern string) string {
	const most, hashed = 64, 8
	plain, exact := at.domain.name, isWord(at.domain.name)
	for _, r := range at.list {
		plain += "--" + r.key
		exact = exact && isWord(r.key) && (r.value == "" || isWord(r.value))
		if r.value != "" {
			plain += "-" + r.value
		}
	}
	if exact && len(plain) <= most {
		return plain
	}
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}, plain)
	h := sha256.Sum256([]byte(pattern))
	return name[:min(len(name), most-hashed-1)] + "-" + hex.EncodeToString(h[:])[:hashed]
}

func isWord(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') &&
			(c < '0' || c > '9')
	})
}

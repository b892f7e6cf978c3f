package windows

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/internal/glob"
)

// unreachable returns, for each rule that is evaluated for no key, the earlier rule that takes the last of
// its keys. One rule that decides takes them all, and so do MaxShadows shadow rules together. It may miss a rule that
// several other rules cover together. It never returns a rule that a key can reach.
func unreachable(list []*Rule) map[int]int {
	found := map[int]int{}
	type pattern struct {
		literal string
		tokens  []token
	}
	patterns := make([]pattern, len(list))
	for i, r := range list {
		if r.Match == "" {
			continue
		}
		above := MaxShadows // rules that take all of its keys
		if !r.Shadow {
			above = 1
		}
		literal := glob.Split(r.Match).Literal
		patterns[i] = pattern{literal, tokensOf(r.Match)}
		for j := range i {
			if list[j].Shadow != r.Shadow || list[j].Match == "" ||
				!strings.HasPrefix(literal, patterns[j].literal) || !covers(patterns[j].tokens, patterns[i].tokens) {
				continue
			}
			if above--; above == 0 {
				found[i] = j
				break
			}
		}
	}
	return found
}

// token is a character of a pattern.
type token struct {
	char rune
	wild bool // ? or *
}

// tokensOf returns a pattern in a form that is the same for patterns that differ only in the order of their wildcards.
func tokensOf(pattern string) []token {
	var out []token
	escaped := false
	for _, c := range pattern {
		switch {
		case escaped:
			out, escaped = append(out, token{char: c}), false
		case c == '\\':
			escaped = true
		case len(out) > 0 && out[len(out)-1] == star && c == '*': // one star is enough
		case len(out) > 0 && out[len(out)-1] == star && c == '?':
			out = append(out[:len(out)-1], one, star)
		default:
			out = append(out, token{c, c == '*' || c == '?'})
		}
	}
	if slices.Equal(out, []token{one, star}) { // no key is empty
		return out[1:]
	}
	return out
}

var star, one = token{'*', true}, token{'?', true}

// covers reports whether each key that fits b also fits a. It matches a with the text of b, where
// only a star of a matches a star of b, and only a ? or a star of a matches a ? of b.
func covers(a, b []token) bool {
	fits := make([]bool, len(b)+1) // tokens of b → whether the part of a so far covers so many of them
	fits[0] = true
	for _, t := range a {
		next := make([]bool, len(fits))
		for n := range fits {
			switch {
			case t == star:
				next[n] = fits[n] || n > 0 && next[n-1]
			case n > 0:
				next[n] = fits[n-1] && b[n-1] != star && (t == one || t == b[n-1])
			}
		}
		if fits = next; !slices.Contains(fits, true) {
			return false
		}
	}
	return fits[len(b)]
}

// Warnings returns what is allowed in the file but certainly not intended: rules that can
// never decide. Each warning begins with NAME:LINE:COLUMN, like an error.
func (r *Rules) Warnings() []error { return r.warnings }

// LogWarnings writes the warnings to a log, which may be nil.
func (r *Rules) LogWarnings(log *slog.Logger) {
	if log == nil {
		return
	}
	for _, w := range r.warnings {
		text, _, _ := strings.Cut(w.Error(), "\n") // without the excerpt
		log.Warn("the rules have a rule that does nothing", "warning", text)
	}
}

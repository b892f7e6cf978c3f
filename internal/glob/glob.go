// Package glob compares keys with patterns: * is any run of characters, ? any one, \ before either itself.
package glob

import (
	"errors"
	"strings"
	"unicode/utf8"

	// Its language is small (* ? \), matches in place without allocating, works
	// on UTF-8 and can be bounded.
	"github.com/tidwall/match"

	"github.com/streamcounter/streamcounter/api"
)

// Glob is a pattern, split before its first wildcard.
type Glob struct {
	Literal string // a text that fits begins with it
	Rest    string // the pattern for the part after Literal
}

// Parse gives the pattern, or says what is wrong with it.
func Parse(pattern string) (Glob, error) {
	switch {
	case pattern == "":
		return Glob{}, errors.New("a pattern is empty: * is for all")
	case strings.ContainsFunc(pattern, func(c rune) bool { return c == utf8.RuneError || api.Unprintable(c) }):
		return Glob{}, errors.New("a pattern has control characters or is not UTF-8")
	case (len(pattern)-len(strings.TrimRight(pattern, `\`)))%2 == 1:
		return Glob{}, errors.New(`a pattern ends in a lone \; \\ is the backslash itself`)
	}
	return Split(pattern), nil
}

// Split splits a valid pattern before its first wildcard, and takes the escapes out of the part before.
func Split(pattern string) Glob {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '*', '?':
			return Glob{b.String(), pattern[i:]}
		case '\\':
			i++ // a valid pattern does not end in a lone one
		}
		b.WriteByte(pattern[i])
	}
	return Glob{b.String(), ""}
}

// Fits reports whether all of the text fits the pattern.
func (g Glob) Fits(text string) bool { return strings.HasPrefix(text, g.Literal) && g.FitsRest(text) }

// maxSteps bounds match.MatchLimit to maxSteps steps for each byte of the text.
// Unbounded, it goes back to every star: *a*a*a*a*b* over 128 times "a" took
// 4.9 s. One is exact: where a text fits, a piece between two stars put at the
// first place where it fits never has to be taken back, so every step after the
// first leaves a character of the text behind for good. A text that needs more does not fit.
const maxSteps = 1

// FitsRest is Fits for a text that begins with Literal.
func (g Glob) FitsRest(text string) bool {
	fits, _ := match.MatchLimit(text[len(g.Literal):], g.Rest, maxSteps)
	return fits
}

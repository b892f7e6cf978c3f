// Package glob compares keys with patterns: * is any run of characters, ? is any one character, and \ makes the
// character after it literal.
package glob

import (
	"errors"
	"strings"
	"unicode/utf8"

	// Its patterns are simple (* ? \). It matches without allocating, works on UTF-8,
	// and its number of steps can be bounded.
	"github.com/tidwall/match"

	"github.com/streamcounter/streamcounter/api"
)

// Glob is a pattern, split before its first wildcard.
type Glob struct {
	Literal string // each text that fits begins with it
	Rest    string // the pattern for the part after Literal
}

// Parse returns the pattern, or an error that says what is wrong with it.
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

// Split splits a valid pattern before its first wildcard, and removes the escapes from the part before it.
func Split(pattern string) Glob {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '*', '?':
			return Glob{b.String(), pattern[i:]}
		case '\\':
			i++ // a valid pattern does not end with a single backslash
		}
		b.WriteByte(pattern[i])
	}
	return Glob{b.String(), ""}
}

// Fits reports whether all of the text fits the pattern.
func (g Glob) Fits(text string) bool { return strings.HasPrefix(text, g.Literal) && g.FitsRest(text) }

// maxSteps bounds match.MatchLimit to maxSteps steps for each byte of the text.
// Without a bound it goes back to every star: *a*a*a*a*b* over 128 times "a" took
// 4.9 s. One step is enough: if a text fits, each piece between two stars can stay at
// the first place where it fits, so every step after the first passes one more
// character of the text. A text that needs more steps does not fit.
const maxSteps = 1

// FitsRest is Fits for a text that begins with Literal.
func (g Glob) FitsRest(text string) bool {
	fits, _ := match.MatchLimit(text[len(g.Literal):], g.Rest, maxSteps)
	return fits
}

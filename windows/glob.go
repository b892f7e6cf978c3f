package windows

import (
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/match"

	"github.com/streamcounter/streamcounter/api"
)

// Glob is a pattern as rules have it: * any run of characters, ? any one, \ before either itself.
type Glob struct {
	literal string // what a text must begin with
	rest    string // the pattern that what follows must fit
}

// ParseGlob gives the pattern, or says what is wrong with it.
func ParseGlob(pattern string) (Glob, error) {
	switch {
	case pattern == "":
		return Glob{}, errors.New("a pattern is empty: * is for all")
	case strings.ContainsFunc(pattern, func(c rune) bool { return c == utf8.RuneError || api.Unprintable(c) }):
		return Glob{}, errors.New("a pattern has control characters or is not UTF-8")
	case (len(pattern)-len(strings.TrimRight(pattern, `\`)))%2 == 1:
		return Glob{}, errors.New(`a pattern ends in a lone \; \\ is the backslash itself`)
	}
	literal, rest := cutLiteral(pattern)
	return Glob{literal, rest}, nil
}

// Fits reports whether all of the text fits the pattern.
func (g Glob) Fits(text string) bool {
	if !strings.HasPrefix(text, g.literal) {
		return false
	}
	fits, _ := match.MatchLimit(text[len(g.literal):], g.rest, maxSteps)
	return fits
}

// FormatDuration writes a duration as short as people do, and as ParseDuration reads it: 31d, 1h30m, 10ms.
func FormatDuration(d time.Duration) string { return inDays(d) }

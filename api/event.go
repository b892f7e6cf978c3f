package api

import (
	"fmt"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// Bounds of the contract.
const (
	// MaxKeyBytes is the longest key, in bytes of UTF-8.
	MaxKeyBytes = 512
	// MaxCount is the largest count of one event and the largest cost of one check.
	MaxCount = 1_000_000_000
	// maxIDBytes is the longest id of an event, in bytes of UTF-8.
	maxIDBytes = 128
)

// Event says that Key acted Count times. Redis sets its time when it is appended: Redis's clock is the only clock.
type Event struct {
	Key   string `json:"key"`
	Count int64  `json:"count"`
	// ID is for producers that append an event again when they do not know whether it was appended. If events of a key
	// have the same ID and are appended within the retention, only the first one counts. Empty: each event counts.
	ID string `json:"id,omitempty"`
	// TraceParent is the W3C trace context of the producer of the event, in the form of the header traceparent.
	// Workers continue the trace. An invalid value is left out.
	TraceParent string `json:"-"`
	// TraceState goes with TraceParent, in the form of the header tracestate. A value over 512 bytes is left out.
	TraceState string `json:"-"`
	// Values are more fields of the event, whose different values the rules count, such as {"user": "alice"}.
	Values map[string]string `json:"values,omitempty"`
}

// Validate reports the first thing wrong with the event, wrapping ErrBadKey, ErrBadCount, ErrBadID or ErrBadValue.
func (e Event) Validate() error {
	if err := ValidateKey(e.Key); err != nil {
		return err
	}
	if err := ValidateCount(e.Count); err != nil {
		return err
	}
	if e.ID != "" {
		if err := validateText(e.ID, maxIDBytes, ErrBadID); err != nil {
			return err
		}
	}
	return ValidateValues(e.Values)
}

// ValidateKey reports whether key may be counted: 1 to 512 bytes of UTF-8 without control characters and invisible
// ones. The error wraps ErrBadKey and shows the key, shortened if it is long.
func ValidateKey(key string) error {
	return validateText(key, MaxKeyBytes, ErrBadKey)
}

// invisible are characters that show nothing: spaces of no width, a soft hyphen, fillers, operators, tags. With them,
// and with characters that turn the direction of text (U+202E), two different keys look alike. Joiners of letters and
// emoji (U+200C, U+200D) and their variants are allowed.
var invisible = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x00AD, Hi: 0x00AD, Stride: 1}, {Lo: 0x034F, Hi: 0x034F, Stride: 1}, {Lo: 0x115F, Hi: 0x1160, Stride: 1},
		{Lo: 0x180E, Hi: 0x180E, Stride: 1}, {Lo: 0x200B, Hi: 0x200B, Stride: 1},
		{Lo: 0x2060, Hi: 0x2064, Stride: 1}, {Lo: 0x206A, Hi: 0x206F, Stride: 1}, {Lo: 0x3164, Hi: 0x3164, Stride: 1},
		{Lo: 0xFEFF, Hi: 0xFEFF, Stride: 1}, {Lo: 0xFFA0, Hi: 0xFFA0, Stride: 1}, {Lo: 0xFFF9, Hi: 0xFFFB, Stride: 1},
	},
	R32:         []unicode.Range32{{Lo: 0xE0000, Hi: 0xE007F, Stride: 1}},
	LatinOffset: 1,
}

// Unprintable reports whether r is not allowed in a key: a control character, an invisible one, or one that turns the
// direction of text.
func Unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || unicode.Is(invisible, r)
}

func validateText(s string, most int, bad error) error {
	switch {
	case s == "":
		return fmt.Errorf("%w: it is empty", bad)
	case len(s) > most:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", bad, Shorten(s), len(s), most)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not valid UTF-8", bad, Shorten(s))
	}
	for i, r := range s {
		if Unprintable(r) {
			return fmt.Errorf("%w: %s has the control or invisible character %U at byte %d", bad, Shorten(s), r, i)
		}
	}
	return nil
}

// ValidateCount reports whether n may be the count of an event or the cost of
// a check: 1 to MaxCount. The error wraps ErrBadCount.
func ValidateCount(n int64) error {
	if n < 1 || n > MaxCount {
		return badCount(strconv.FormatInt(n, 10))
	}
	return nil
}

// ParseCount reads the count of an event or the cost of a check: digits without a sign or a leading zero. The error
// wraps ErrBadCount and shows the text.
func ParseCount(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ValidateCount(n) != nil || text[0] < '1' {
		return 0, badCount(Shorten(text))
	}
	return n, nil
}

func badCount(got string) error {
	return fmt.Errorf("%w: %s, expected a whole number from 1 to 1,000,000,000", ErrBadCount, got)
}

// Shorten quotes s for an error message and cuts it after 40 bytes.
func Shorten(s string) string {
	if len(s) <= 40 {
		return fmt.Sprintf("%q", s)
	}
	cut := 40
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%q…", s[:cut])
}

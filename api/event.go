package api

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Bounds of the contract.
const (
	// MaxKeyBytes is the longest key, in bytes of UTF-8.
	MaxKeyBytes = 512
	// MaxCount is the largest count of one event and the largest cost of one check.
	MaxCount = 1_000_000_000
)

// Event says that Key acted Count times. Its time is given by Redis when it is
// appended: Redis's clock is the only clock.
type Event struct {
	Key   string `json:"key"`
	Count int64  `json:"count"`
}

// Validate reports the first thing wrong with the event, wrapping ErrBadKey or ErrBadCount.
func (e Event) Validate() error {
	if err := ValidateKey(e.Key); err != nil {
		return err
	}
	return ValidateCount(e.Count)
}

// ValidateKey reports whether key may be counted: 1 to 512 bytes of UTF-8
// without control characters. The error wraps ErrBadKey and shows the key,
// shortened where it is long.
func ValidateKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrBadKey)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrBadKey, Shorten(key), len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %s is not valid UTF-8", ErrBadKey, Shorten(key))
	}
	for i, r := range key {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w: %s has the control character %U at byte %d", ErrBadKey, Shorten(key), r, i)
		}
	}
	return nil
}

// ValidateCount reports whether n may be the count of an event or the cost of
// a check: 1 to MaxCount. The error wraps ErrBadCount.
func ValidateCount(n int64) error {
	if n < 1 || n > MaxCount {
		return fmt.Errorf("%w: %d is not between 1 and %d", ErrBadCount, n, MaxCount)
	}
	return nil
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

package testkit

import (
	"strconv"
	"time"
)

// Words reads the words of the steps of a story.
type Words struct{ Failer }

// Number returns a whole number.
func (w Words) Number(text string) int64 {
	w.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	Must(w, err)
	return n
}

// Duration returns a duration like 1h30m.
func (w Words) Duration(text string) time.Duration {
	w.Helper()
	d, err := time.ParseDuration(text)
	Must(w, err)
	return d
}

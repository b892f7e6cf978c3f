package english_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/english"
)

func TestNumbersAndSpans(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567",
		1_000_000_000_000: "1,000,000,000,000"} {
		if got := english.Number(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0 seconds", time.Second: "1 second",
		90 * time.Second: "90 seconds",
		90 * time.Minute: "90 minutes", 36 * time.Hour: "36 hours", 366 * 24 * time.Hour: "366 days",
		1500 * time.Millisecond: "1,500 milliseconds"} {
		if got := english.Span(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 112: "112th",
		1021: "1,021st"} {
		if got := english.Ordinal(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// Up to two letters may be wrong. Of several words the nearest is returned, and no word if none is similar.
func TestNearest(t *testing.T) {
	known := []string{"serve", "sinks", "work"}
	for name, want := range map[string]string{"serve": "serve", "sreve": "serve", "sink": "sinks", "wark": "work",
		"doctor": "", "": ""} {
		if got := english.Nearest(name, known); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

package compare

import (
	"bufio"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var linePlace = regexp.MustCompile(`^x\.txt:[1-9][0-9]*: [^\n]`)

// FuzzReadTrace: a trace is in order and within bounds, and written out it is read as the same trace; every other
// input is an error with its line.
func FuzzReadTrace(f *testing.F) {
	for _, text := range []string{
		"# when who how much\n\n 10 b\n  5\ta 3 \n10 a 2\n7 c\n", "1000000000000000 a 1", "1000000000000001 a",
		"-1 a", "1.5 a", "1", "1 a 2 3", "1 a 0", "1 a 9223372036854775808",
		"+5 a", "0 #", "5 a\r\n4 b\r\n", "5 a\r4 b", "\xff \xfe", "1\u00a0a", "1e3 a", "007 a 08", "1 a\x00b",
		"\ufeff1 a", strings.Repeat("9", 100) + " a",
	} {
		f.Add(text)
	}
	valid := func(key string, cost int64) error {
		if len(key) > 512 {
			return fmt.Errorf("a key of %d bytes", len(key))
		}
		return nil
	}
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadTrace("x.txt", strings.NewReader(text), valid)
		if err != nil {
			if !linePlace.MatchString(err.Error()) || len(err.Error()) > 500 ||
				strings.ContainsAny(err.Error(), "\x00\x1b\n") {
				t.Fatalf("%q: no place, or too much, in %q", text, err)
			}
			return
		}
		lines := 0
		for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
			if line := strings.TrimSpace(s.Text()); line != "" && !strings.HasPrefix(line, "#") {
				lines++
			}
		}
		if len(trace.Requests) != lines {
			t.Fatalf("%d requests of %d lines", len(trace.Requests), lines)
		}
		var out strings.Builder
		before := int64(0)
		for _, r := range trace.Requests {
			if r.Ms < before || r.Ms > 1_000_000_000_000_000 || r.Cost < 1 || r.Key == "" || len(r.Key) > 512 {
				t.Fatalf("%q: request %+v after %d ms", text, r, before)
			}
			before = r.Ms
			fmt.Fprintf(&out, "%d %s %d\n", r.Ms, r.Key, r.Cost)
		}
		again, err := ReadTrace("again.txt", strings.NewReader(out.String()), valid)
		if err != nil || again.Sorted != 0 {
			t.Fatalf("%q, written out %q: %+v, %v", text, out.String(), again, err)
		}
		if d := cmp.Diff(trace.Requests, again.Requests); d != "" {
			t.Fatalf("%q, written out and read again\n%s", text, d)
		}
	})
}

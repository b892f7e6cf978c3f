package compare

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func anything(string, int64) error { return nil }

func TestReadTrace(t *testing.T) {
	text := "# when who how much\n\n 10 b\n  5\ta 3 \n10 a 2 user=x=y ip=::1\n7 c user=b\n"
	got, err := ReadTrace("x.txt", strings.NewReader(text), anything)
	testkit.Must(t, err)
	want := Trace{Name: "trace x.txt", Sorted: 2, Requests: []Request{{Ms: 5, Key: "a", Cost: 3},
		{Ms: 7, Key: "c", Cost: 1, Values: map[string]string{"user": "b"}}, {Ms: 10, Key: "b", Cost: 1},
		{Ms: 10, Key: "a", Cost: 2, Values: map[string]string{"user": "x=y", "ip": "::1"}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +have)\n%s", diff)
	}
}

func TestReadTraceErrors(t *testing.T) {
	valid := func(key string, cost int64) error {
		if key == "bad" || cost > 9 {
			return errors.New("not valid")
		}
		return nil
	}
	for _, test := range []struct{ text, want string }{
		{"1 a\nnow b\n", `x.txt:2: ms "now": want a whole number of milliseconds from 0 to 9*10^12`},
		{"# a\n\n-1 b 1\n", `x.txt:3: ms "-1": want a whole number of milliseconds from 0 to 9*10^12`},
		{"9000000000001 b", `x.txt:1: ms "9000000000001": want a whole number of milliseconds from 0 to 9*10^12`},
		{"1.5 b", `x.txt:1: ms "1.5": want a whole number of milliseconds from 0 to 9*10^12`},
		{"1", `x.txt:1: "1": want MS KEY or MS KEY COST, and FIELD=VALUE`},
		{"1 a 2 3", `x.txt:1: "1 a 2 3": want MS KEY or MS KEY COST, and FIELD=VALUE`},
		{"1 a user=", `x.txt:1: bad value of "user": it is empty`},
		{"1 a 0", `x.txt:1: cost "0": want a whole number of at least 1`},
		{"1 a two", `x.txt:1: cost "two": want a whole number of at least 1`},
		{"1 a 99999999999999999999", `x.txt:1: cost "99999999999999999999": want a whole number of at least 1`},
		{"1 bad", `x.txt:1: not valid`},
		{"1 a 9\n2 a 10", `x.txt:2: not valid`},
		{"1 a\n" + strings.Repeat("x", maxLine+1), `x.txt:2: the line is longer than 1048576 bytes`},
	} {
		_, err := ReadTrace("x.txt", strings.NewReader(test.text), valid)
		if err == nil || err.Error() != test.want {
			t.Errorf("%.40q: error %v, want %s", test.text, err, test.want)
		}
	}
}

// The requests of a second are spread over it, whatever the order of the lines.
func TestReadLog(t *testing.T) {
	parse := func(line string) (at time.Time, r Request, skip bool, err error) {
		when, key, ok := strings.Cut(line, " ")
		switch {
		case line == "":
			return at, r, true, nil
		case !ok:
			return at, r, false, errors.New("no key")
		}
		at, err = time.Parse(time.TimeOnly, when)
		return at.AddDate(2015, 0, 0), Request{Key: key, Cost: 1}, false, err
	}
	var bad []int
	text := "00:00:02 d\n00:00:01 a\n\n" + strings.Repeat("x", 3*maxLine) +
		"\n00:00:01 b\n00:00:02 e\n00:00:01 c\n99:00:00 x\n00:00:02 f\n00:00:02 g\n"
	got, err := ReadLog("log.txt", strings.NewReader(text), parse, func(n int, _ error) { bad = append(bad, n) })
	testkit.Must(t, err)
	second := time.Date(2015, 1, 1, 0, 0, 1, 0, time.UTC).UnixMilli()
	want := Trace{Name: "log log.txt", Sorted: 3, Rejected: 2, Requests: []Request{
		{second, "a", 1, nil}, {second + 333, "b", 1, nil}, {second + 666, "c", 1, nil}, {second + 1000, "d", 1, nil},
		{second + 1250, "e", 1, nil}, {second + 1500, "f", 1, nil}, {second + 1750, "g", 1, nil},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +have)\n%s", diff)
	}
	if diff := cmp.Diff([]int{4, 8}, bad); diff != "" {
		t.Errorf("lines reported (-want +have)\n%s", diff)
	}
	before1970 := func(string) (time.Time, Request, bool, error) {
		return time.Unix(-1, 0), Request{Key: "a", Cost: 1}, false, nil
	}
	if got, _ := ReadLog("log.txt", strings.NewReader("x"), before1970, func(int, error) {}); got.Rejected != 1 {
		t.Errorf("a time before 1970: %+v, want it rejected", got)
	}
}

// A line that ends with an error, and not with the input, is half a line.
func TestALineThatWasInterrupted(t *testing.T) {
	interrupted := errors.New("interrupted")
	var lines []string
	n, err := EachLine(io.MultiReader(strings.NewReader("ip:1 1\r\nip:2 12"), iotest.ErrReader(interrupted)),
		func(_ int, line string, err error) error {
			lines = append(lines, line)
			return err
		})
	if n != 2 || !errors.Is(err, interrupted) || !slices.Equal(lines, []string{"ip:1 1"}) {
		t.Errorf("lines %q, then line %d: %v", lines, n, err)
	}
}

var linePlace = regexp.MustCompile(`^x\.txt:[1-9][0-9]*: [^\n]`)

// FuzzReadTrace: a trace is in order and within bounds, and written out it is read as the same trace; every other
// input is an error with its line.
func FuzzReadTrace(f *testing.F) {
	for _, text := range []string{
		"# when who how much\n\n 10 b\n  5\ta 3 \n10 a 2\n7 c\n", "1000000000000000 a 1", "9000000000001 a",
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

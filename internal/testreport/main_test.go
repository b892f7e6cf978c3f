package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestReport(t *testing.T) {
	var input strings.Builder
	for _, e := range []event{
		{"run", "p/a", "TestOne", ""},
		{"output", "p/a", "TestOne", "=== RUN   TestOne\n"},
		{"output", "p/a", "TestOne", "    a_test.go:7: not tested on a real Redis: start Docker\n"},
		{"output", "p/a", "TestOne", "--- SKIP: TestOne (0.00s)\n"},
		{"skip", "p/a", "TestOne", ""},
		{"output", "p/a", "TestTwo", "    b_test.go:9: not tested on a real Redis: start Docker\n"},
		{"skip", "p/a", "TestTwo", ""},
		{"output", "p/a", "TestThree", "    c_test.go:1: all is well\n"},
		{"pass", "p/a", "TestThree", ""},
		{"output", "p/a", "TestFour", "--- SKIP: TestFour (0.00s)\n"},
		{"skip", "p/a", "TestFour", ""},
		{"output", "p/a", "", "PASS\n"}, // go test prints it with -v alone
		{"output", "p/a", "", "ok  \tp/a\t0.1s\n"},
		{"pass", "p/a", "", ""},
		{"output", "p/b", "TestFive", "    d_test.go:3: got 1, want 2\n"},
		{"fail", "p/b", "TestFive", ""},
		{"output", "p/b", "TestSix", "panic: no more\n"},
		{"output", "p/b", "", "FAIL\tp/b\t0.2s\n"},
		{"fail", "p/b", "", ""},
		{"build-output", "", "", "c.go:1: undefined: x\n"},
		{"skip", "p/d", "", ""}, // a package without tests
	} {
		line, err := json.Marshal(e)
		testkit.Must(t, err)
		input.Write(append(line, '\n'))
	}
	input.WriteString("go: no such tool\n")
	want := `ok  	p/a	0.1s
    d_test.go:3: got 1, want 2
FAIL	p/b	0.2s
c.go:1: undefined: x
go: no such tool
panic: no more

3 tests were skipped:
     2  not tested on a real Redis: start Docker
     1  no reason given
`
	var got strings.Builder
	if err := report(strings.NewReader(input.String()), &got); err != nil || got.String() != want {
		t.Errorf("error %v, got\n%s\nwant\n%s", err, &got, want)
	}
	got.Reset()
	if err := report(strings.NewReader(""), &got); err != nil || got.String() != "\nNo test was skipped.\n" {
		t.Errorf("nothing skipped: error %v, got %q", err, &got)
	}
}

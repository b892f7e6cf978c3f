package httpapi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// appended gives the events in the log, as "key count", of all partitions in turn.
func (w *world) appended(t *testing.T) map[string]int {
	t.Helper()
	got := map[string]int{}
	for _, p := range w.keys.All() {
		entries, err := w.redis.XRange(t.Context(), w.keys.Events(p), "-", "+").Result()
		testkit.Must(t, err)
		for _, e := range entries {
			got[fmt.Sprint(e.Values["key"], " ", e.Values["count"])]++
		}
	}
	return got
}

func TestEvents(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       map[string]int
		rejected   map[int]string // line → a part of what is said
	}{
		{"array", `[{"key":"a"},{"key":"a","count":5},{"key":"b c","count":1000000000,"id":"x"}]`,
			map[string]int{"a 1": 1, "a 5": 1, "b c 1000000000": 1}, nil},
		{"array over lines", "\n [\n{\"key\":\"a\"} ,\r\n{\"key\":\"b\"}\n]\n", map[string]int{"a 1": 1, "b 1": 1},
			nil},
		{"empty array", `[]`, map[string]int{}, nil},
		{"lines", "{\"key\":\"a\"}\n{\"key\":\"b\",\"count\":2}\n", map[string]int{"a 1": 1, "b 2": 1}, nil},
		{"one line without its end", `{"key":"a"}`, map[string]int{"a 1": 1}, nil},
		{"lines of another system, some blank", "{\"key\":\"a\"}\r\n\r\n  \n{\"key\":\"b\"}\r\n",
			map[string]int{"a 1": 1, "b 1": 1}, nil},
		{"bad lines", strings.Join([]string{
			`{"key":"a"}`, `{"key":"b"`, ``, `{"count":1}`, `{"key":""}`, `{"key":"a","count":0}`,
			`{"key":"a","count":-1}`, `{"key":"a","count":1.5}`,
			`{"key":"a","count":1000000001}`, `{"key":"a","count":true}`, `7`, `null`, `{"key":"a"} {"key":"b"}`,
			"{\"key\":\"a\xff\"}", `{"key":"a\n"}`, `{"key":7}`, `{"key":"z"}`,
		}, "\n"), map[string]int{"a 1": 1, "z 1": 1}, map[int]string{
			2: "JSON", 4: `no "key"`, 5: "empty", 6: "0 is not between", 7: "-1", 8: "1.5", 9: "1000000001",
			10: "is no integer", 11: "number",
			12: `no "key"`, 13: "invalid character", 14: "UTF-8", 15: "U+000A", 16: "number",
		}},
		{"bad elements", "[{\"key\":\"a\"},{\"key\":\"\"},[],\"x\",{\"key\":\"a\xff\"},{\"key\":\"z\"}]",
			map[string]int{"a 1": 1, "z 1": 1}, map[int]string{
				2: "empty", 3: "array", 4: "string", 5: "UTF-8",
			}},
		{"nothing but bad lines", "a b c\n-\n", map[string]int{}, map[int]string{1: "invalid character",
			2: "invalid character"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEveryRedis(t, func(t *testing.T, w *world) {
				a := w.do(t, "POST", "/v1/events", c.body)
				wantStatus(t, a, 202)
				accepted := 0
				for _, n := range c.want {
					accepted += n
				}
				rejected, _ := a.body["rejected"].([]any)
				if len(a.body) != 2 || a.num("accepted") != int64(accepted) || len(rejected) != len(c.rejected) {
					t.Errorf("%s, want %d accepted and %d rejected and nothing else", a.text, accepted, len(c.rejected))
				}
				for _, r := range rejected {
					line, _ := r.(map[string]any)["line"].(float64)
					says, _ := r.(map[string]any)["error"].(string)
					if part := c.rejected[int(line)]; part == "" || !strings.Contains(says, part) {
						t.Errorf("line %v is rejected with %q, want it to say %q", line, says, part)
					}
				}
				if diff := cmp.Diff(c.want, w.appended(t)); diff != "" {
					t.Errorf("events in the log (-want +got):\n%s", diff)
				}
			}, tenAMinute)
		})
	}
}

func TestEventsThatCannotBeTakenApart(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		for _, c := range []struct {
			name, body string
			status     int
			problem    string
			says       string
		}{
			{"nothing", "", 400, "bad-request", "empty"},
			{"blanks", " \r\n\t", 400, "bad-request", "empty"},
			{"array that ends too early", `[{"key":"a"},`, 400, "bad-request", "at byte 13"},
			{"array with a comma too many", `[{"key":"a"},]`, 400, "bad-request", "at byte 14"},
			{"array with more after it", `[{"key":"a"}] [{"key":"b"}]`, 400, "bad-request", "at byte 15"},
			{"too large", `{"key":"a"}` + strings.Repeat("\n", 8<<20), 413, "body-too-large", "8388608 bytes"},
		} {
			t.Run(c.name, func(t *testing.T) {
				wantProblem(t, w.do(t, "POST", "/v1/events", c.body), c.status, c.problem, c.says)
			})
		}
		if got := w.appended(t); len(got) != 0 {
			t.Errorf("events %v of bodies that were refused", got)
		}
	}, tenAMinute)
}

// Redis refuses one partition: the answer says how many are in and how many are not.
func TestEventsRefusedInPart(t *testing.T) {
	onEveryRedis(t, func(t *testing.T, w *world) {
		bad := w.keys.Partition("a")
		testkit.Must(t, w.redis.Set(t.Context(), w.keys.Events(bad), "no stream", 0).Err())
		if w.keys.Partition("user:42") == bad {
			t.Fatal("the keys of this test share a partition")
		}
		a := w.do(t, "POST", "/v1/events", `[{"key":"a"},{"key":"user:42"},{"key":""},{"key":"a","count":2}]`)
		wantProblem(t, a, 503, "unavailable", "store unavailable")
		counts, _ := a.body["events"].(map[string]any)
		if counts["accepted"] != 1.0 || counts["refused"] != 2.0 || counts["unknown"] != nil ||
			len(counts["rejected"].([]any)) != 1 {
			t.Errorf("%s, want 1 accepted, 2 refused, 1 rejected", a.text)
		}
	}, tenAMinute)
}

// Whatever comes, a line is an event or is rejected under its number, and every
// event is valid.
func TestDecodeEventsLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(
			rapid.SampledFrom([]string{`{"key":"a"}`, `{"key":"b","count":7}`, `{"key":"a","count":"7"}`, `{`, `{}`,
				`[]`, `"`, `1e9`, "\xff", `{"key":"\u0000"}`, `{"key":"a","count":1e3}`}),
			rapid.StringMatching(`[^\n]{0,12}`),
		)
		lines := rapid.SliceOfN(line, 1, 12).Draw(t, "lines")
		events, _, rejected, more, err := httpapi.DecodeEvents([]byte(strings.Join(lines, "\n")))
		if err != nil {
			if !errors.Is(err, api.ErrBadRequest) || len(events)+len(rejected)+more > 0 {
				t.Fatalf("error %v with %d events and %d rejected", err, len(events), len(rejected))
			}
			return
		}
		if strings.HasPrefix(strings.TrimLeft(strings.Join(lines, "\n"), " \t\r\n"), "[") {
			return // an array
		}
		full := 0
		for _, l := range lines {
			if strings.TrimSpace(l) != "" {
				full++
			}
		}
		if len(events)+len(rejected)+more != full {
			t.Fatalf("%d events and %d rejected of %d lines", len(events), len(rejected), full)
		}
		for _, e := range events {
			if err := e.Validate(); err != nil {
				t.Fatalf("%+v: %v", e, err)
			}
		}
		for _, r := range rejected {
			if r.Line < 1 || r.Line > len(lines) || r.Error == "" {
				t.Fatalf("rejected %+v of %d lines", r, len(lines))
			}
		}
	})
}

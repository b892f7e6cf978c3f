package httpapi_test

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// FuzzCheckBody: a body is read or refused with a full problem, and the keys in the answer are exactly the keys in
// the body, character by character.
func FuzzCheckBody(f *testing.F) {
	// Its rules match nothing, so no check needs Redis. The test tries how bodies are read.
	h := newWorld(f, streamtest.Connect(f, "127.0.0.1:1"), rule("none-of-these", nil, tenAMinute.Windows...)).handler
	for _, s := range []string{
		`{"key":"user:1"}`, `{"key":"a","cost":3}`, `{"checks":[{"key":"a"},{"key":"b","cost":2}]}`,
		`{"key":"\ud83d\ude00"}`, `{"key":"\ud800"}`, `{"key":"\ud800\u0041"}`,
		`{"checks":[]}`, `{"checks":[{"checks":[]}]}`, `{}`, `[]`, `null`, ``, `{"key":"a"}{}`,
		`{"key":"a","cost":1e3}`, `{"key":"a","cost":9223372036854775808}`, "{\"key\":\"\xff\"}",
		`{"KEY":"a","key":"b"}`, `{"key":1}`, `{"key":"\\ud800"}`, "\ufeff{}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("POST", "/v1/check", strings.NewReader(body)))
		if rec.Code != 200 {
			var p api.Problem
			if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || p.Status != rec.Code || rec.Code != 400 &&
				rec.Code != 413 || p.Detail == "" || rec.Body.Len() > 2000 {
				t.Fatalf("%q: %d %s", body, rec.Code, rec.Body)
			}
			return
		}
		var one api.CheckAnswer
		var many api.ChecksAnswer
		testkit.Must(t, json.Unmarshal(rec.Body.Bytes(), &one))
		testkit.Must(t, json.Unmarshal(rec.Body.Bytes(), &many))
		answers := many.Checks
		if answers == nil {
			answers = []api.CheckAnswer{one}
		}
		for _, a := range answers {
			if err := (api.Event{Key: a.Key, Count: a.Cost}).Validate(); err != nil {
				t.Fatalf("%q: allowed %+v: %v", body, a, err)
			}
			wantWritten(t, a.Key, body)
		}
	})
}

// FuzzEventsBody: every line is an event, or is rejected, or is counted among
// those; no event is invalid, and no key has a character that nobody wrote.
func FuzzEventsBody(f *testing.F) {
	for _, s := range []string{
		`[{"key":"a"},{"key":"b","count":2,"id":"x"}]`, "{\"key\":\"a\"}\n{\"key\":\"b\"}\r\n\n", `[`, `[]`,
		`[1,[],{},"x",null]`, "-\n-\n", `{"key":"\ud800"}`, `[{"key":"\udc00\ud800"}]`, "{\"key\":\"\xff\"}",
		`[{"key":"a,]\",["},7]`, "[{\"key\":\"a\"}] x", "{\"key\":\"a\",\"count\":1e400}", "\x00",
		`{"key":"a","id":"` + strings.Repeat("i", 200) + `"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) { decoded(t, body) })
}

// decoded returns how many events of a body were taken or rejected, or -1 if the body cannot be split.
func decoded(t rapid.TB, body []byte) int {
	events, _, rejected, more, err := httpapi.DecodeEvents(slices.Clone(body), api.Event.Validate)
	n := len(events) + len(rejected) + more
	if err != nil {
		if !errors.Is(err, api.ErrBadRequest) && !errors.Is(err, api.ErrBodyTooLarge) || n > 0 {
			t.Fatalf("%q: %d events, and %v", body, n, err)
		}
		return -1
	}
	if len(rejected) > 1000 || more > 0 && len(rejected) < 1000 || n > 100_000 {
		t.Fatalf("%d events, %d rejected, %d more", len(events), len(rejected), more)
	}
	for _, e := range events {
		if err := e.Validate(); err != nil {
			t.Fatalf("%q: %+v: %v", body, e, err)
		}
		wantWritten(t, e.Key, string(body))
	}
	last := 0
	for _, r := range rejected {
		if r.Line <= last || r.Error == "" || len(r.Error) > 1000 {
			t.Fatalf("%q: rejected %+v after line %d", body, r, last)
		}
		last = r.Line
	}
	return n
}

// wantWritten expects that a key has no replacement character, unless the body has one.
func wantWritten(t rapid.TB, key, body string) {
	if strings.ContainsRune(key, utf8.RuneError) && !strings.ContainsRune(body, utf8.RuneError) &&
		!strings.Contains(strings.ToLower(body), `\ufffd`) {
		t.Fatalf("%q: the key %q has a character that nobody wrote", body, key)
	}
}

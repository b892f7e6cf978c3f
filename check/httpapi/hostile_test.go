package httpapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Half a character in an escape would be read as U+FFFD, and keys that differ
// there would share a count.
func TestHalfCharactersAreRefused(t *testing.T) {
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	onEveryRedis(t, func(t *testing.T, w *world) {
		for text, at := range map[string]int{
			`\ud800`: 0, `\udbff`: 0, `\udc00`: 0, `\uDFFF`: 0, `a\ud800b`: 1, `\ud800\ud800`: 0, `\ud83d\u0041`: 0,
			`\ude00\ud83d`: 0,
			`\\\ud800`:     2, `\"\ud800`: 2, `\ud83d\ude00\ud83d`: 12, `\ud800\`: -1, `\ud80`: -1, `\u`: -1,
		} {
			body := fmt.Sprintf(`{"key":"%s"}`, text)
			says := fmt.Sprintf("at byte %d: ", at+len(`{"key":"`))
			if at < 0 {
				says = "" // no JSON at all: the decoder says so
			}
			wantProblem(t, w.post(t, body), 400, "bad-request", says)
			if at >= 0 {
				wantProblem(t, w.post(t, fmt.Sprintf(`{"checks":[{"key":"a"},{"key":"%s"}]}`, text)), 400,
					"bad-request", "half a character")
			}
			a := w.do(t, "POST", "/v1/events", body+"\n{\"key\":\"good\"}")
			if a.status != 202 || a.num("accepted") != 1 || !strings.Contains(a.text, `"line":1`) ||
				!strings.Contains(a.text, says) {
				t.Errorf("%s as an event: %d %s", text, a.status, a.text)
			}
		}
		for text, key := range map[string]string{
			`\ud83d\ude00`: "😀", `\\ud800`: `\ud800`, `\\\\ud800`: `\\ud800`, `\ufffd`: "\ufffd", `\u0041`: "A",
			`\uFFFD\ud83d\ude00`: "\ufffd😀",
		} {
			if a := w.post(t, fmt.Sprintf(`{"key":"%s"}`, text)); a.status != 200 || a.str("key") != key {
				t.Errorf("%s: %d %s, want the key %q", text, a.status, a.text, key)
			}
		}
		if got := w.appended(t); len(got) != 1 {
			t.Errorf("appended %v, want the good ones alone", got)
		}
	}, anyKey)
}

// A body of bad lines names the first thousand, and one of too many is not read to its end.
func TestEventsAreBounded(t *testing.T) {
	w := newWorld(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()), tenAMinute)
	lines := func(n int) string { return strings.Repeat("-\n", n) }
	a := w.do(t, "POST", "/v1/events", lines(1500)+`{"key":"user:1"}`)
	if list, _ := a.body["rejected"].([]any); a.status != 202 || len(list) != 1000 || a.num("rejected_more") != 500 ||
		a.num("accepted") != 1 {
		t.Errorf("%d: %d named, %d more, %d accepted, want 1000, 500 and 1", a.status, len(list),
			a.num("rejected_more"), a.num("accepted"))
	}
	if a := w.do(t, "POST", "/v1/events", lines(100_000)); a.status != 202 || a.num("rejected_more") != 99_000 {
		t.Errorf("100,000 bad lines: %d, %d more", a.status, a.num("rejected_more"))
	}
	if a := w.do(t, "POST", "/v1/events", "["+strings.Repeat("7,", 99_999)+"7]"); a.status != 202 ||
		a.num("rejected_more") != 99_000 {
		t.Errorf("100,000 bad elements: %d, %d more", a.status, a.num("rejected_more"))
	}
	for name, body := range map[string]string{
		"lines": lines(100_001), "elements": "[" + strings.Repeat("7,", 100_000) + "7]",
		"good lines":                        strings.Repeat(`{"key":"user:1"}`+"\n", 100_001),
		"elements with commas of their own": `[{"key":"a,]\",["},` + strings.Repeat("[1,2],", 100_000) + "7]",
	} {
		before := len(w.appended(t))
		t.Run(name, func(t *testing.T) {
			wantProblem(t, w.do(t, "POST", "/v1/events", body), 413, "body-too-large", "100000 events")
			if n := len(w.appended(t)); n != before {
				t.Errorf("%d events of a body that was refused", n-before)
			}
		})
	}
}

// Keys that look like paths reach the handler over a real connection too: nothing
// on the way tidies them up, and nothing is redirected.
func TestKeysOverTheWire(t *testing.T) {
	anyKey := rule("any", func(r *windows.Rule) { r.Match = "*" }, tenAMinute.Windows...)
	w := newWorld(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()), anyKey)
	server := httptest.NewServer(w.handler)
	defer server.Close()
	for _, key := range []string{"..", "../..", "//", "/", ".", "a//b", "a/../b", "../../healthz"} {
		for _, path := range []string{"/v1/keys/" + key, "/v1/keys/" + url.PathEscape(key)} {
			if status, body := raw(t, server.Listener.Addr().String(),
				"GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); status != 200 ||
				!strings.Contains(body, fmt.Sprintf(`"key":"%s"`, key)) {
				t.Errorf("GET %s: %d %s", path, status, body)
			}
		}
	}
	for _, path := range []string{"//v1/check?key=a", "/v1//check?key=a", "/./healthz", "/v1/check/?key=a",
		"/V1/check?key=a"} {
		if status, body := raw(t, server.Listener.Addr().String(),
			"GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); status != 404 ||
			!strings.Contains(body, "about:blank") {
			t.Errorf("GET %s: %d %s, want a 404 of ours", path, status, body)
		}
	}
}

// raw sends a request as it stands and reads the answer to its end.
func raw(t *testing.T, addr, request string) (status int, body string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	testkit.Must(t, err)
	defer c.Close()
	_, err = io.WriteString(c, request)
	testkit.Must(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	testkit.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp.StatusCode, string(text)
}

// A caller that has gone is no failure of ours.
func TestCallerThatWentAway(t *testing.T) {
	w := newWorld(t, streamtest.Connect(t, streamtest.EmbeddedRedis(t).Addr()), tenAMinute)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range []*http.Request{
		httptest.NewRequest("GET", "/v1/check?key=user:1", nil),
		httptest.NewRequest("POST", "/v1/check", strings.NewReader(`{"checks":[{"key":"user:1"}]}`)),
		httptest.NewRequest("GET", "/v1/keys/user:1", nil),
		httptest.NewRequest("DELETE", "/v1/keys/user:1", nil),
		httptest.NewRequest("GET", "/v1/throttled", nil),
	} {
		rec := httptest.NewRecorder()
		w.handler.ServeHTTP(rec, r.WithContext(ctx))
		if rec.Code != 499 || !strings.Contains(rec.Body.String(), "urn:streamcounter:canceled") {
			t.Errorf("%s %s: %d %s, want 499", r.Method, r.URL, rec.Code, rec.Body)
		}
	}
}

// What a megabyte of bad lines costs beside one of good ones.
func BenchmarkDecodeEvents(b *testing.B) {
	for name, line := range map[string]string{"good": `{"key":"user:42","count":3}`, "bad": "-",
		"half": `{"key":"\ud800"}`, "blank": ""} {
		body := []byte(strings.Repeat(line+"\n", 99_000))
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, _, _, _, err := httpapi.DecodeEvents(body); (err != nil) != (name == "blank") {
					b.Fatal(err)
				}
			}
		})
	}
}

package sinks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// No error shows a secret, even if the endpoint repeats parts of the request.
func TestNoErrorShowsASecret(t *testing.T) {
	const path, token, query, bearer = "/hooks/pathsecret12/a%2Fsecond%20secret", "qsecret+qq%2Fzz", "bare-query-ww",
		"bearer.secret.90"
	target := path + "?token=" + token + "&" + query
	const want = path + "/api/v2/alerts?token=" + token + "&" + query
	var say atomic.Value // http.HandlerFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		say.Load().(http.HandlerFunc)(w, r)
	}))
	t.Cleanup(server.Close)
	sink := func(base string) *Sink {
		d := testkit.WriteFile(t, "token", bearer)
		file, err := Open(testkit.WriteFile(t, "sinks.yml", fmt.Sprintf(
			"sinks:\n  - {name: a, type: alertmanager, url_file: %s, token_file: %s, timeout: 1s}\n",
			testkit.WriteFile(t, "url", base+target), d)), nil)
		testkit.Must(t, err)
		return file.Value()[0]
	}
	hijack := func(format string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				b := bufio.NewWriter(conn)
				fmt.Fprintf(b, format, r.RequestURI, r.Header.Get("Authorization"))
				_ = b.Flush()
				_ = conn.Close()
			}
		}
	}
	text := func(format string, change func(string) string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.RequestURI != want {
				t.Errorf("it posts to %s, want %s", r.RequestURI, want)
			}
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, format, change(r.RequestURI), change(r.Header.Get("Authorization")))
		}
	}
	same := func(s string) string { return s }
	unescaped := func(s string) string { out, _ := url.QueryUnescape(s); return out }
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"as it came":  text("no %s, %s", same),
		"unescaped":   text("no %s, %s", unescaped),
		"JSON of PHP": text("no %s, %s", func(s string) string { return strings.ReplaceAll(s, "/", `\/`) }),
		"HTML":        text("no %s, %s", func(s string) string { return strings.ReplaceAll(s, "&", "&amp;") }),
		"JSON of Go":  text("no %s, %s", func(s string) string { return strings.ReplaceAll(s, "&", `\u0026`) }),
		"the query alone": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "bad %q: %s", r.URL.Query()["token"], r.URL.RawQuery)
		},
		"a status line": hijack("HTTP/1.1 what %s %s\r\n\r\n"),
		"no HTTP":       hijack("%s %s\r\n\r\n"),
		"a header":      hijack("HTTP/1.1 200 OK\r\n%s %s\r\n\r\n"),
		"a length":      hijack("HTTP/1.1 200 OK\r\nContent-Length: %s %s\r\n\r\n"),
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/"+r.RequestURI, http.StatusTemporaryRedirect)
		},
		"nothing": hijack(""),
	} {
		say.Store(http.HandlerFunc(answer))
		noSecret(t, name, sink(server.URL))
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	testkit.Must(t, closed.Close())
	noSecret(t, "refused", sink("http://"+closed.Addr().String()))
	noSecret(t, "no TLS", sink(strings.Replace(server.URL, "http:", "https:", 1)))
	noSecret(t, "no host", sink("http://pathsecret12.invalid"))
}

func noSecret(t *testing.T, name string, s *Sink) {
	t.Helper()
	err := s.deliver(t.Context(), "sc", Sample(api.StateRaised, time.Now()), time.Time{})
	if err == nil {
		t.Errorf("%s: it was taken", name)
		return
	}
	for _, secret := range []string{"pathsecret12", "second", "qsecret", "qq", "zz", "bare-query", "bearer.secret"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: it shows %s: %v", name, secret, err)
		}
	}
}

func TestTheDefaultText(t *testing.T) {
	x, err := newText("", Slack)
	testkit.Must(t, err)
	for _, c := range []struct {
		state    api.State
		level    int
		inFlight bool
		want     string
	}{
		{api.StateRaised, 100, false, "sample:key is throttled: 80 of 100 per 1m (rule sample)"},
		{api.StateRaised, 80, false, "sample:key has reached 80 % of its limit: 80 of 100 per 1m (rule sample)"},
		{api.StateRaised, 80, true, "sample:key has reached 80 % of its limit: 80 of 100 in flight (rule sample)"},
		{api.StateCleared, 80, false, "sample:key is below 80 % of 100 per 1m again (rule sample)"},
		{api.StateCleared, 80, true, "sample:key is below 80 % of 100 in flight again (rule sample)"},
	} {
		alert := Sample(c.state, time.Now())
		alert.Level, alert.InFlight = c.level, c.inFlight
		if got, err := x.render(alert); err != nil || got != c.want {
			t.Errorf("%q, %v, want %q", got, err, c.want)
		}
	}
}

// Slack gets only the text, and a key can neither link nor mention. Nothing shows its URL.
func TestSlack(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got = r.URL.Path + " " + string(b)
	}))
	url := testkit.WriteFile(t, "url", server.URL+"/services/T0/B0/secret\n")
	file, err := Open(testkit.WriteFile(t, "sinks.yml", "sinks: [{name: slack, type: slack, url_file: "+url+"}]"), nil)
	testkit.Must(t, err)
	sink, alert := file.Value()[0], Sample(api.StateRaised, time.Now())
	alert.Key, alert.Rule = "<!channel>", "api"
	testkit.Must(t, sink.deliver(t.Context(), "sc", alert, time.Time{}))
	if want := `/services/T0/B0/secret {"text":"\u0026lt;!channel\u0026gt; has reached 80 % of its limit: ` +
		`80 of 100 per 1m (rule api)"}`; got != want {
		t.Errorf("it got %s, want %s", got, want)
	}
	if text := sink.String(); strings.Contains(text, "secret") || !strings.Contains(text, "slack") {
		t.Errorf("it is shown as %s", text)
	}
	server.Close()
	if err := sink.SendSample(t.Context(), "sc"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an endpoint that is away: %v", err)
	}
}

// The queue gets the time of an endpoint's Retry-After. TestRetryAfterHoldsAllKeys proves that the queue waits.
func TestRetryAfterIsTold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	text := fmt.Sprintf("sinks: [{name: a, type: slack, url: %q}]", server.URL)
	file, err := Open(testkit.WriteFile(t, "sinks.yml", text), nil)
	testkit.Must(t, err)
	var refused refusal
	err = file.Value()[0].SendSample(t.Context(), "sc")
	if !errors.As(err, &refused) || refused.after != 7*time.Second {
		t.Errorf("%v: the wait is %s, want 7s", err, refused.after)
	}
}

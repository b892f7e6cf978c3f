package sinks

import (
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
	type answer struct {
		form   string // what the endpoint sends, with the URI and the token
		change func(string) string
	}
	var answers atomic.Pointer[answer]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.RequestURI != want {
			t.Errorf("it posts to %s, want %s", r.RequestURI, want)
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			a := answers.Load()
			fmt.Fprintf(conn, a.form, a.change(r.RequestURI), a.change(r.Header.Get("Authorization")))
			_ = conn.Close()
		}
	}))
	t.Cleanup(server.Close)
	sink := func(base string) *Sink {
		return opened(t, fmt.Sprintf("{name: a, type: alertmanager, url_file: %s, token_file: %s, timeout: 1s}",
			testkit.WriteFile(t, "url", base+target), testkit.WriteFile(t, "token", bearer)))
	}
	same := func(s string) string { return s }
	instead := func(from, to string) func(string) string { return strings.NewReplacer(from, to).Replace }
	const refused = "HTTP/1.1 404 Not Found\r\n\r\nno %s, %s"
	for name, c := range map[string]answer{
		"as it came":      {refused, same},
		"unescaped":       {refused, func(s string) string { out, _ := url.QueryUnescape(s); return out }},
		"JSON of PHP":     {refused, instead("/", `\/`)},
		"HTML":            {refused, instead("&", "&amp;")},
		"JSON of Go":      {refused, instead("&", `\u0026`)},
		"the query alone": {refused, func(s string) string { _, out, _ := strings.Cut(s, "?"); return out }},
		"a status line":   {"HTTP/1.1 what %s %s\r\n\r\n", same},
		"no HTTP":         {"%s %s\r\n\r\n", same},
		"a header":        {"HTTP/1.1 200 OK\r\n%s %s\r\n\r\n", same},
		"a length":        {"HTTP/1.1 200 OK\r\nContent-Length: %s %s\r\n\r\n", same},
		"a redirect":      {"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/%s%.0s\r\n\r\n", same},
		"nothing":         {"%.0s%.0s", same},
	} {
		answers.Store(&c)
		noSecret(t, name, sink(server.URL))
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	testkit.Must(t, closed.Close())
	noSecret(t, "refused", sink("http://"+closed.Addr().String()))
	noSecret(t, "no TLS", sink(strings.Replace(server.URL, "http:", "https:", 1)))
	noSecret(t, "no host", sink("http://pathsecret12.invalid"))
}

// opened returns the one sink of a file.
func opened(t *testing.T, text string) *Sink {
	t.Helper()
	file, err := Open(testkit.WriteFile(t, "sinks.yml", "sinks: ["+text+"]"), nil)
	testkit.Must(t, err)
	return file.Value()[0]
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

// A text that is too long is cut. If a text fails with some alerts, the default text is used.
func TestTexts(t *testing.T) {
	alert := Sample(api.StateRaised, time.Now())
	alert.Key = "a" // shorter than the sample's
	for source, want := range map[string]string{
		`{{printf "%9999d" 1}}`: strings.Repeat(" ", 4096), `{{slice .Key 0 10}}`: "a has reached 80 %",
		`{{.At.Format "2006"}} {{.State}}`: " raised",
	} {
		x, err := newText(source, Webhook)
		testkit.Must(t, err)
		if got := x.of(alert); !strings.Contains(got, want) || len(got) > 4096 {
			t.Errorf("%s: %d bytes, %.100q", source, len(got), got)
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
	sink := opened(t, "{name: slack, type: slack, url_file: "+url+"}")
	alert := Sample(api.StateRaised, time.Now())
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
	for told, want := range map[string]time.Duration{"7": 7 * time.Second, "100000000000": longestAfter} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", told)
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		t.Cleanup(server.Close)
		var refused refusal
		err := opened(t, fmt.Sprintf("{name: a, type: slack, url: %q}", server.URL)).SendSample(t.Context(), "sc")
		if !errors.As(err, &refused) || refused.after != want {
			t.Errorf("Retry-After %s, %v: the wait is %s, want %s", told, err, refused.after, want)
		}
	}
}

package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// An error names the setting, and says what is wrong with it.
func TestSettingsThatCannotBe(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	cert, key := ours.Issue("server")
	rules, empty := devRules(t), testkit.WriteFile(t, "empty.pem", "nothing")
	closed := testkit.FreeAddr(t)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	serve := "serve --redis embedded:0 --http 127.0.0.1:0 --rules " + rules
	for line, says := range map[string]string{
		serve + " --tls-cert " + cert + " --tls-key " + key + "x": "--tls-key (STREAMCOUNTER_TLS_KEY)",
		serve + " --tls-cert " + ours.CA + " --tls-key " + key:    "private key does not match",
		serve + " --tls-cert " + cert + " --tls-key " + key + " --tls-client-ca " + empty: "--tls-client-ca " +
			"(STREAMCOUNTER_TLS_CLIENT_CA): " + empty + ": it has no certificate",
		"serve --redis embedded:0 --rules " + rules + " --http " + closed + " --grpc " + closed: "expected another " +
			"address than that of --http",

		serve + " --redis redis://" + secure.Listener.Addr().String():                      "give rediss:// instead",
		serve + " --redis " + strings.Replace(streamtest.Redis(t), "redis:", "rediss:", 1): "give redis:// instead",
		"watch --nats " + strings.Replace(streamtest.OwnNATS(t).URL(), "nats:", "tls:", 1): "no TLS; give nats://",
		"work --http 127.0.0.1:0 --redis embedded:0 --nats= --rules " + rules:              "no URL: expected nats://",
	} {
		if text := expect(t, line, failure, says); strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s: %s", line, text)
		}
	}
}

// Each command warns of an unknown variable, even a command without a log.
func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	t.Setenv("STREAMCOUNTER_HTPP", "127.0.0.1:1")
	expect(t, "rules check "+devRules(t), 0, "did you mean STREAMCOUNTER_HTTP?")
}

// A process that is stopped while it starts ends cleanly.
func TestAStopDuringTheStart(t *testing.T) {
	t.Parallel()
	redis, rules := "redis://"+streamtest.EmbeddedRedis(t).Addr(), testkit.WriteFile(t, "rules.yml", devRulesText)
	for _, command := range []string{"serve", "work"} {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		code, out, errs := runWithin(ctx, "", command, "--redis", redis, "--rules", rules, "--http", "127.0.0.1:0")
		if code != 0 || strings.Contains(errs, "streamcounter: ") ||
			!strings.Contains(errs, "stopped during the start") {
			t.Errorf("%s: exit code %d, %s%s", command, code, out, errs)
		}
	}
}

// No command follows a redirect, which would take the token elsewhere, or believes an answer that is not ours.
func TestServersThatAreNotOurs(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s came elsewhere, with %q", r.Method, r.URL, r.Header["Authorization"])
	}))
	defer elsewhere.Close()
	redirects := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer redirects.Close()
	other := testkit.Answering(t, 200, `{"ok":true}`)
	t.Setenv("STREAMCOUNTER_TOKEN", checkerToken)
	for _, line := range []string{"check user:1", "health", "keys show user:1", "keys reset user:1", "keys throttled",
		"keys history user:1", "keys top", "keys block user:1", "keys block user:* --yes", "keys unblock user:1",
		"keys clear user:1", "keys overrides"} {
		for server, says := range map[*httptest.Server]string{
			redirects: "the server answered 307 Temporary Redirect",
			other:     "the answer has no field that is expected: is this a streamcounter server?",
		} {
			if code, out, errs := runProgram(t, "", strings.Fields(line+" --http "+server.URL)...); code == 0 ||
				out != "" || !strings.Contains(errs, says) {
				t.Errorf("%s: %d %s%s, want %s", line, code, out, errs, says)
			}
		}
	}
}

// A change whose outcome the server does not know: the command says what may have happened and what to do.
func TestChangeWithAnUnknownOutcome(t *testing.T) {
	server := testkit.Answering(t, http.StatusServiceUnavailable, `{"type": "urn:streamcounter:outcome-unknown",
		"status": 503, "title": "It may or may not have been stored",
		"detail": "outcome unknown: it may be sent again"}`)
	at := " --http " + strings.TrimPrefix(server.URL, "http://")
	for _, command := range []string{"block user:1", "limit user:1 5/1m", "clear user:1", "reset user:1"} {
		expect(t, "keys "+command+at, 1, "streamcounter: It may or may not have been stored (outcome unknown: it may "+
			"be sent again)\n")
	}
}

// An error that is not ours is shown, shortened. A server that wants TLS says so in one.
func TestErrorsThatAreNotOurs(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains about plain HTTP
	secure.StartTLS()
	defer secure.Close()
	other := testkit.Answering(t, http.StatusBadGateway, "<html>\n<body>no upstream</body>"+strings.Repeat(" ", 9999))
	for _, command := range []string{"check user:1", "keys show user:1"} {
		for url, says := range map[string]string{
			"http://" + strings.TrimPrefix(secure.URL, "https://"): "the server answered 400 Bad Request: " +
				"\"Client sent an HTTP request to an HTTPS server.\"; give --http https://HOST:PORT, or --http-ca\n",
			other.URL: "the server answered 502 Bad Gateway: \"<html>\\n<body>no upstream</body>",
		} {
			text := expect(t, command+" --http "+url, failure, says)
			if len(text) > 400 {
				t.Errorf("it says %d bytes", len(text))
			}
		}
	}
}

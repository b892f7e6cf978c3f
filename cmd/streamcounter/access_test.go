package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const (
	checkerToken, readerToken = "checker-0123456789", "reader-0123456789"
	accessTokens              = "tokens:\n  - {name: gateway, token: " + checkerToken +
		", scopes: [check]}\n  - {name: prometheus, token: " + readerToken + ", scopes: [read]}\n"
)

// A server that other machines can reach needs tokens, or a user who says that it may be open (testdata/wrong.txt), and
// warns.
func TestNobodyIsOpenByAccident(t *testing.T) {
	p := startServe(t, "--http", "0.0.0.0:0", "--tokens", testkit.WriteFile(t, "tokens.yml", accessTokens))
	if strings.Contains(p.text(), "no access control on ") {
		t.Error("with tokens the log warns that it is open")
	}
	t.Setenv("STREAMCOUNTER_OPEN", "true")
	if p = startServe(t, "--http", "0.0.0.0:0"); !strings.Contains(p.text(), "no access control on ") {
		t.Error("the log does not warn that it is open")
	}
}

// reachedBy returns the URL of a process from this machine.
func (p *process) reachedBy(scheme string) string {
	p.t.Helper()
	_, port, err := net.SplitHostPort(readyAt.FindStringSubmatch(p.text())[1])
	testkit.Must(p.t, err)
	return scheme + "://127.0.0.1:" + port
}

// answered sends a request with a token, and returns status 0 if no answer came.
func answered(t testing.TB, c *http.Client, method, url, token string) (int, string) {
	t.Helper()
	var headers []string
	if token != "" {
		headers = []string{"Authorization: Bearer " + token}
	}
	resp, text := call(t, c, method, url, "", headers...)
	return resp.StatusCode, text
}

// On a public address a stranger can find out that a server runs, and no more. The tests of check/access and
// check/httpapi have the scope of each route; this one proves that each process has a router and tokens.
func TestStrangersFindNothing(t *testing.T) {
	rules, tokens := devRules(t), testkit.WriteFile(t, "tokens.yml", accessTokens)
	own := streamtest.OwnRedis(t)
	work := []string{"work", "--nats", streamtest.NATS(t), "--prefix", streamtest.Prefix(t)}
	for _, args := range [][]string{work, {"serve"}} {
		p := startProgram(t, append(args, "--redis", own.URL(), "--rules", rules, "--http", "0.0.0.0:0", "--tokens",
			tokens)...)
		p.until(`"msg":"ready"`)
		base := p.reachedBy("http")
		for _, c := range []struct {
			path, token string
			status      int
		}{
			{"/page/live", "", 401}, {"/metrics", "", 401}, {"/v1/check?key=user:1", "", 401},
			{"/debug/pprof/", "", 401}, {"/healthz", "", 200}, {"/readyz", "", 200}, {"/metrics", readerToken, 200},
			{"/metrics", checkerToken, 403},
		} {
			if code, body := answered(t, http.DefaultClient, "GET", base+c.path, c.token); code != c.status {
				t.Errorf("%s: %s with the token %q: %d %s", args[0], c.path, c.token, code, body)
			}
		}
		if args[0] != "serve" {
			continue
		}
		conn := dialGRPC(t, p, nil)
		for token, want := range map[string]codes.Code{"": codes.Unauthenticated, checkerToken: codes.OK} {
			if err := limit(t, conn, token); status.Code(err) != want {
				t.Errorf("gRPC with the token %q: %v, want %s", token, err, want)
			}
		}
		t.Setenv("STREAMCOUNTER_TOKEN_FILE", testkit.WriteFile(t, "token", checkerToken+"\n"))
		expect(t, "check user:1 --http "+base, 0)
		rewrite(t, tokens, "tokens: [nothing]")
		p.until("keeping the previous ones")
		streamtest.Eventually(t, "SIGHUP reads it again", func() (bool, string) {
			_ = p.Cmd.Process.Signal(hangUp)
			_, body := answered(t, http.DefaultClient, "GET", base+"/metrics", readerToken)
			return strings.Contains(body, `streamcounter_file_reloads_total{file="tokens",outcome="error"} 2`) &&
				strings.Contains(body, `streamcounter_file_refused{file="tokens"} 1`), ""
		})
		own.Stop()
		if code, body := answered(t, http.DefaultClient, "GET", base+"/readyz", ""); code != 503 ||
			strings.Contains(body, own.Addr()) || strings.Contains(body, "connect") {
			t.Errorf("not ready: %d %s", code, body)
		}
		p.until("not ready: Redis does not answer")
		if strings.Contains(p.text(), checkerToken) || strings.Contains(p.text(), readerToken) {
			t.Errorf("the log has a token:\n%s", p.text())
		}
	}
}

func over(c *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true,
		ForceAttemptHTTP2: true}, Timeout: 10 * time.Second}
}

// TLS with client certificates keeps strangers out too, and replaced certificates are shown to the next caller.
func TestServeSpeaksTLS(t *testing.T) {
	ours, others := streamtest.NewAuthority(t), streamtest.NewAuthority(t)
	cert, key := ours.Issue("server")
	mine, mineKey := ours.Issue("client")
	theirs, theirsKey := others.Issue("stranger")
	plain := startServe(t, "--tls-cert", cert, "--tls-key", key)
	if resp, err := over(ours.Config("", "")).Get(plain.reachedBy("https") + "/healthz"); err != nil ||
		resp.ProtoMajor != 2 {
		t.Errorf("HTTP/2 over TLS: %v, %v", resp, err)
	}
	if code, _ := answered(t, http.DefaultClient, "GET", plain.reachedBy("http")+"/healthz", ""); code != 400 {
		t.Errorf("plain text was answered: %d", code)
	}
	probes := testkit.FreeAddr(t)
	p := startServe(t, "--tls-cert", cert, "--tls-key", key, "--http", "0.0.0.0:0", "--tls-client-ca", ours.CA,
		"--health", probes)
	// A kubelet has no certificate: its probes have a separate address, which serves nothing else.
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/v1/check?key=user:1": 404,
		"/metrics": 404} {
		if code, body := answered(t, http.DefaultClient, "GET", "http://"+probes+path, ""); code != want {
			t.Errorf("%s at --health: %d %s, want %d", path, code, body, want)
		}
	}
	base := p.reachedBy("https")
	good := over(ours.Config(mine, mineKey))
	if code, body := answered(t, good, "GET", base+"/v1/check?key=user:1", ""); code != 200 {
		t.Errorf("a client with a certificate: %d %s", code, body)
	}
	stranger := ours.Config("", "")
	stranger.Certificates = others.Config(theirs, theirsKey).Certificates
	for name, c := range map[string]*tls.Config{"none": ours.Config("", ""), "a stranger's": stranger} {
		if code, body := answered(t, over(c), "GET", base+"/healthz", ""); code != 0 {
			t.Errorf("a client with %s certificate: %d %s", name, code, body)
		}
		if err := limit(t, dialGRPC(t, p, c), ""); status.Code(err) != codes.Unavailable {
			t.Errorf("gRPC with %s certificate: %v, want no connection", name, err)
		}
	}
	if err := limit(t, dialGRPC(t, p, ours.Config(mine, mineKey)), ""); err != nil {
		t.Errorf("gRPC with a certificate: %v", err)
	}
	addr := strings.TrimPrefix(base, "https://")
	pair := " --http-cert " + mine + " --http-key " + mineKey
	for line, code := range map[string]int{
		"check user:1 --http " + addr + " --http-ca " + ours.CA + pair:   0,
		"check user:1 --http " + addr + " --http-ca " + ours.CA:          2, // no certificate
		"check user:1 --http " + base + " --http-ca " + others.CA + pair: 2,
		"health --http " + addr + " --tls-cert " + cert + pair:           0, // as in an image
		"health --http " + addr + " --tls-cert " + mine + pair:           1, // another server
	} {
		expect(t, line, code)
	}

	shown := func() string {
		c, err := tls.Dial("tcp", addr, ours.Config(mine, mineKey))
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if got := shown(); got != "server" {
		t.Errorf("the server shows %q", got)
	}
	ours.IssueTo("renewed", cert, key)
	streamtest.Eventually(t, "the new certificate is shown",
		func() (bool, string) { got := shown(); return got == "renewed", got })
	rewrite(t, key, "no key")
	p.until("certificates not reloaded, keeping the previous ones")
	if got := shown(); got != "renewed" {
		t.Errorf("after a bad change the server shows %q", got)
	}
}

// Help shows nothing of the environment.
func TestHelpShowsNoSecrets(t *testing.T) {
	for _, cmd := range []*cobra.Command{newServe(), newWork(), newCheck(), newDoctor()} {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { t.Setenv(settings.EnvName(f.Name), "SECRET") })
	}
	for _, command := range []string{"serve", "work", "dev", "append", "check", "keys", "watch", "doctor", "bench",
		"compare"} {
		if code, out, errs := runProgram(t, "", command, "--help"); code != 0 || strings.Contains(out+errs, "SECRET") {
			t.Errorf("%s --help: exit code %d\n%s%s", command, code, out, errs)
		}
	}
}

// Profiles and the log level are served to this machine only. A changed log level applies to everything that is
// logged after that.
func TestDebugListener(t *testing.T) {
	at := testkit.FreeAddr(t)
	d := startDev(t, "--debug", at, "--log-level", "error")
	for _, c := range []struct {
		method, path, body, host string
		status                   int
		says                     string
	}{
		{"GET", "/debug/log-level", "", "", 200, "error\n"},
		{"PUT", "/debug/log-level", "loud", "", 400, `"loud", expected debug, info, warn or error`},
		{"PUT", "/debug/log-level", "debug\n", "", 200, "debug\n"},
		{"GET", "/debug/log-level", "", "", 200, "debug\n"},
		{"GET", "/debug/pprof/", "", "", 200, "goroutine"},
		{"GET", "/debug/pprof/heap?debug=1", "", "", 200, "heap profile"},
		{"GET", "/debug/pprof/profile?seconds=1", "", "", 200, ""},
		{"GET", "/debug/pprof/cmdline", "", "", 404, ""}, // a command line can contain passwords
		{"GET", "/debug/pprof/heap?debug=1", "", "rebound.example", 403, "forbidden"},
		{"PUT", "/debug/log-level", "error", "rebound.example", 403, "forbidden"},
		{"GET", "/v1/throttled", "", "", 404, ""},
	} {
		resp, text := call(t, http.DefaultClient, c.method, "http://"+at+c.path, c.body,
			"Host: "+c.host)
		if resp.StatusCode != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%+v: %d %.200s", c, resp.StatusCode, text)
		}
	}
	d.until("the log level was changed")
	d.interrupt()
	d.until("stopping")
}

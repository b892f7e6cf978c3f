package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
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

// A server that other machines can reach, and that does not authenticate callers, does not start.
func TestNobodyIsOpenByAccident(t *testing.T) {
	rules, tokens := testkit.WriteFile(t, "rules.yml", devRulesText), testkit.WriteFile(t, "tokens.yml", accessTokens)
	nats := streamtest.NATS(t)
	for _, command := range []string{"serve", "work", "dev"} {
		for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
			args := []string{command, "--redis", "embedded:0", "--rules", rules, "--http", addr}
			if command != "serve" {
				args = append(args, "--nats", nats, "--prefix", streamtest.Prefix(t))
			}
			code, out, errs := runProgram(t, "", args...)
			if code != exitUsage || !strings.Contains(errs, "--http (STREAMCOUNTER_HTTP) is "+strconv.Quote(addr)) ||
				!strings.Contains(errs, "--tokens") || !strings.Contains(errs, "--open (STREAMCOUNTER_OPEN=true)") {
				t.Fatalf("%s on %s: exit code %d\n%s%s", command, addr, code, out, errs)
			}
		}
	}
	serve := []string{"serve", "--redis", "embedded:0", "--rules", rules, "--http"}
	if code, _, errs := runProgram(t, "", append(serve, "127.0.0.1:0", "--grpc", "0.0.0.0:0")...); code != exitUsage ||
		!strings.Contains(errs, `--grpc (STREAMCOUNTER_GRPC) is "0.0.0.0:0": other machines can reach this address`) {
		t.Errorf("gRPC: exit code %d, %s", code, errs)
	}
	p := startProgram(t, append(serve, "0.0.0.0:0", "--tokens", tokens)...)
	if p.until(`"msg":"ready"`); strings.Contains(p.text(), "no access control on ") {
		t.Error("with tokens the log warns that it is open")
	}
	t.Setenv("STREAMCOUNTER_OPEN", "true")
	p = startProgram(t, append(serve, "0.0.0.0:0")...)
	p.until(`"msg":"ready"`)
	if !strings.Contains(p.text(), "no access control on ") {
		t.Error("the log does not warn that it is open")
	}
	t.Setenv("STREAMCOUNTER_OPEN", "perhaps")
	if code, _, errs := runProgram(t, "", append(serve, "0.0.0.0:0")...); code != exitUsage ||
		!strings.Contains(errs, `--open (STREAMCOUNTER_OPEN) is "perhaps": expected true or false`) {
		t.Errorf("a bad value: exit code %d, %s", code, errs)
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
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	testkit.Must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp.StatusCode, string(body)
}

// On a public address a stranger can find out that a server runs, and no more.
func TestStrangersFindNothing(t *testing.T) {
	rules, tokens := testkit.WriteFile(t, "rules.yml", devRulesText), testkit.WriteFile(t, "tokens.yml", accessTokens)
	nats := streamtest.NATS(t)
	own := streamtest.OwnRedis(t)
	for _, args := range [][]string{{"work", "--nats", nats, "--prefix", streamtest.Prefix(t)}, {"serve"}} {
		p := startProgram(t, append(args, "--redis", own.URL(), "--rules", rules, "--http", "0.0.0.0:0", "--tokens",
			tokens)...)
		p.until(`"msg":"ready"`)
		base := p.reachedBy("http")
		for _, path := range []string{"/page/live", "/metrics", "/v1/check?key=user:1", "/v1/events", "/v1/keys/..",
			"/debug/pprof/", "//metrics", "/healthz/", "/readyz/../metrics"} {
			for _, method := range []string{"GET", "OPTIONS"} {
				if code, body := answered(t, http.DefaultClient, method, base+path, ""); code != 401 {
					t.Errorf("%s: %s %s without a token: %d %s", args[0], method, path, code, body)
				}
			}
		}
		for path, want := range map[string]string{"/healthz": "{\"status\":\"ok\"}\n",
			"/readyz": "{\"status\":\"ready\"}\n"} {
			if code, body := answered(t, http.DefaultClient, "GET", base+path, ""); code != 200 || body != want {
				t.Errorf("%s: %s: %d %s", args[0], path, code, body)
			}
		}
		if code, _ := answered(t, http.DefaultClient, "GET", base+"/metrics", readerToken); code != 200 {
			t.Errorf("%s: metrics with a token: %d", args[0], code)
		}
		if code, _ := answered(t, http.DefaultClient, "GET", base+"/metrics", checkerToken); code != 403 {
			t.Errorf("%s: metrics with another token: %d", args[0], code)
		}
		if args[0] != "serve" {
			continue
		}
		wantGRPCTokens(t, p)
		t.Setenv("STREAMCOUNTER_TOKEN_FILE", testkit.WriteFile(t, "token", checkerToken+"\n"))
		if code, out, errs := runProgram(t, "", "check", "user:1", "--http", base); code != 0 {
			t.Errorf("the command check with its token in a file: exit code %d %s%s", code, out, errs)
		}
		// Another token replaces it, without a restart.
		rewrite(t, tokens, strings.ReplaceAll(accessTokens, checkerToken, "another-0123456789"))
		streamtest.Eventually(t, 20*time.Second, "the old token is refused and the new one is good",
			func() (bool, string) {
				before, _ := answered(t, http.DefaultClient, "GET", base+"/v1/check?key=user:1", checkerToken)
				after, _ := answered(t, http.DefaultClient, "GET", base+"/v1/check?key=user:1", "another-0123456789")
				return before == 401 && after == 200, fmt.Sprint(before, after)
			})
		rewrite(t, tokens, "tokens: [nothing]")
		p.until("keeping the previous ones")
		streamtest.Eventually(t, 10*time.Second, "SIGHUP reads it again", func() (bool, string) {
			_ = p.cmd.Process.Signal(hangUp)
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
		for _, secret := range []string{checkerToken, readerToken, "another-0123456789"} {
			if strings.Contains(p.text(), secret) {
				t.Errorf("the log has %s:\n%s", secret, p.text())
			}
		}
		own.Start()
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
	rules := testkit.WriteFile(t, "rules.yml", devRulesText)
	args := []string{"serve", "--redis", "embedded:0", "--rules", rules, "--tls-cert", cert, "--tls-key", key}

	plain := startProgram(t, append(args, "--http", "127.0.0.1:0")...)
	plain.until(`"msg":"ready"`)
	if code, body := answered(t, over(ours.Config("", "")), "GET", plain.reachedBy("https")+"/v1/check?key=user:1",
		""); code != 200 {
		t.Errorf("TLS without client certificates: %d %s", code, body)
	}
	if code, _ := answered(t, over(others.Config("", "")), "GET", plain.reachedBy("https")+"/healthz", ""); code != 0 {
		t.Errorf("a client that trusts another authority was answered: %d", code)
	}
	if code, _ := answered(t, http.DefaultClient, "GET", plain.reachedBy("http")+"/healthz", ""); code != 400 {
		t.Errorf("plain text was answered: %d", code)
	}
	if resp, err := over(ours.Config("", "")).Get(plain.reachedBy("https") + "/healthz"); err != nil ||
		resp.ProtoMajor != 2 {
		t.Errorf("HTTP/2 over TLS: %v, %v", resp, err)
	}

	probes := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	p := startProgram(t, append(args, "--http", "0.0.0.0:0", "--tls-client-ca", ours.CA, "--health", probes)...)
	p.until(`"msg":"ready"`)
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
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"check, all files": {[]string{"check", "user:1", "--http", addr, "--http-ca", ours.CA, "--http-cert",
			mine, "--http-key", mineKey}, 0},
		"check, no certificate": {[]string{"check", "user:1", "--http", addr, "--http-ca", ours.CA}, 2},
		"check, by URL": {[]string{"check", "user:1", "--http", base, "--http-ca", others.CA, "--http-cert",
			mine, "--http-key", mineKey}, 2},
		"health, as in an image": {[]string{"health", "--http", addr, "--tls-cert", cert, "--http-cert", mine,
			"--http-key", mineKey}, 0},
		"health, another server": {[]string{"health", "--http", addr, "--tls-cert", mine, "--http-cert", mine,
			"--http-key", mineKey}, 1},
	} {
		if code, out, errs := runProgram(t, "", c.args...); code != c.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", name, code, c.code, out, errs)
		}
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
	streamtest.Eventually(t, 20*time.Second, "the new certificate is shown",
		func() (bool, string) { got := shown(); return got == "renewed", got })
	rewrite(t, key, "no key")
	p.until("certificates not reloaded, keeping the previous ones")
	if got := shown(); got != "renewed" {
		t.Errorf("after a bad change the server shows %q", got)
	}
}

func TestTLSSettingsThatCannotBe(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	cert, key := ours.Issue("server")
	empty := testkit.WriteFile(t, "empty.pem", "nothing")
	base := []string{"serve", "--redis", "embedded:0", "--http", "127.0.0.1:0", "--rules",
		testkit.WriteFile(t, "rules.yml", devRulesText)}
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a certificate alone": {[]string{"--tls-cert", cert}, "--tls-cert and --tls-key are needed together"},
		"an authority alone": {[]string{"--tls-client-ca", ours.CA},
			"--tls-cert and --tls-key are needed together"},
		"no such file":       {[]string{"--tls-cert", cert, "--tls-key", key + "x"}, key + "x: no such file"},
		"the key of another": {[]string{"--tls-cert", ours.CA, "--tls-key", key}, "private key does not match"},
		"an empty authority": {[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", empty},
			"--tls-client-ca (STREAMCOUNTER_TLS_CLIENT_CA): " + empty + ": it has no certificate"},
		"plain Redis with files": {[]string{"--redis", "redis://127.0.0.1:1", "--redis-ca", ours.CA},
			"need rediss://"},
		"a bad authority of it": {[]string{"--redis", "rediss://127.0.0.1:1", "--redis-ca", empty},
			"--redis-ca (STREAMCOUNTER_REDIS_CA): " + empty},
		"half a pair": {[]string{"--redis", "rediss://127.0.0.1:1", "--redis-cert", cert},
			"--redis-cert and --redis-key are needed together"},
		"a tokens file is absent": {[]string{"--tokens", "none.yml"},
			"--tokens (STREAMCOUNTER_TOKENS): load tokens: open none.yml"},
		"no connections": {[]string{"--max-connections", "0"},
			"--max-connections (STREAMCOUNTER_MAX_CONNECTIONS)"},
	} {
		if code, _, errs := runProgram(t, "", append(base, c.args...)...); code == 0 ||
			!strings.Contains(errs, c.says) || strings.Contains(errs, "PRIVATE KEY") {
			t.Errorf("%s: exit code %d, want %q in\n%s", name, code, c.says, errs)
		}
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

func TestSecretsFromFiles(t *testing.T) {
	p := startProgram(t, "serve", "--redis", "embedded:0", "--rules", testkit.WriteFile(t, "rules.yml", devRulesText),
		"--http", "127.0.0.1:0")
	p.until(`"msg":"ready"`)
	at := strings.TrimPrefix(p.reachedBy("http"), "http://")
	t.Setenv("STREAMCOUNTER_REDIS_FILE", testkit.WriteFile(t, "redis", "redis://u:SECRET@127.0.0.1:1\n"))
	if code, _, errs := runProgram(t, "a 1", "append"); code != 1 || !strings.Contains(errs, "127.0.0.1:1") ||
		strings.Contains(errs, "SECRET") {
		t.Errorf("the URL in a file: exit code %d, %s", code, errs)
	}
	t.Setenv("STREAMCOUNTER_REDIS", "redis://127.0.0.1:2")
	if code, _, errs := runProgram(t, "a 1", "append"); code != 2 || !strings.Contains(errs, "both set") {
		t.Errorf("the variable and its file: exit code %d, %s", code, errs)
	}
	t.Setenv("STREAMCOUNTER_TOKEN_FILE", "none")
	if code, _, errs := runProgram(t, "", "check", "user:1", "--http", at); code != 2 ||
		!strings.Contains(errs, "STREAMCOUNTER_TOKEN_FILE") {
		t.Errorf("no such file: exit code %d, %s", code, errs)
	}
}

package partners

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// CrowdSec's bouncer bans an address while it is throttled and while it is blocked, and removes the ban after that.
func TestBouncer(t *testing.T) {
	limiter := streamcounter(t, nil, "dev", "--redis", streamtest.OwnRedis(t).URL(),
		"--nats", fmt.Sprintf("embedded:%d", testkit.FreePort(t)),
		"--http", "127.0.0.1:0", "--grpc", "", "--bouncer-rules", "api",
		"--rules", testkit.WriteFile(t, "rules.yml",
			"rules: [{name: api, match: 'ip:*', windows: [{limit: 3, per: 4s}]}]"),
		"--tokens", testkit.WriteFile(t, "tokens.yml", `tokens:
  - {name: firewall, token: FIREWALL-0123456789, scopes: [read]}
  - {name: operator, token: OPERATOR-0123456789, scopes: [check, admin, read]}`))
	url := "http://" + httpOf(limiter)
	dir := t.TempDir()
	// The bouncer calls a program of the user: add|del ADDRESS SECONDS REASON JSON.
	actions := filepath.Join(dir, "actions")
	firewall := filepath.Join(dir, "firewall.sh")
	testkit.Must(t, os.WriteFile(firewall, []byte("#!/bin/sh\necho \"$1 $2 $4\" >>"+actions+"\n"), 0o700))
	start(t, nil, programOf(t, "crowdsec-custom-bouncer"), "-c", testkit.WriteFile(t, "bouncer.yml",
		"bin_path: "+firewall+"\nfeed_via_stdin: false\ntotal_retries: 0\nupdate_frequency: 200ms\n"+
			"cache_retention_duration: 1s\ndaemonize: false\nlog_mode: stdout\nlog_level: info\npiddir: "+dir+
			"\napi_url: "+url+"/\napi_key: FIREWALL-0123456789\nprometheus: {enabled: false}\n"))

	did := func(want string) {
		t.Helper()
		streamtest.Eventually(t, "the bouncer does "+want, func() (bool, string) {
			b, err := os.ReadFile(actions)
			return strings.Contains(string(b), want+"\n"), fmt.Sprintf("%s %v", b, err)
		})
	}
	// On a busy machine, Redis may answer a check too late to count.
	for do(t, "POST", url+"/v1/check", `{"key":"ip:192.0.2.1"}`) != http.StatusTooManyRequests {
	}
	did("add 192.0.2.1 api")
	do(t, "PUT", url+"/v1/overrides/ip:192.0.2.2", `{"block":true,"reason":"abuse"}`)
	did("add 192.0.2.2 override")
	did("del 192.0.2.1 api") // its window has passed
	do(t, "DELETE", url+"/v1/overrides/ip:192.0.2.2", "")
	did("del 192.0.2.2 override")
}

// do sends a request as the operator, and returns the status; a check may be denied.
func do(t testing.TB, method, url, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	testkit.Must(t, err)
	r.Header.Set("Authorization", "Bearer OPERATOR-0123456789")
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	if resp.StatusCode >= 400 && resp.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("%s %s: %s %s", method, url, resp.Status, text)
	}
	return resp.StatusCode
}

// httpOf returns the HTTP address of dev.
func httpOf(p *program) string { return p.until(`HTTP +http://(\S+)`)[1] }

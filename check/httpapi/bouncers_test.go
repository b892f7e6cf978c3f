package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Requests as public bouncers send them.
var (
	firewall = bouncer{"fw-key-0123456789ab", "crowdsec-firewall-bouncer/v0.0.31-linux"}
	nginx    = bouncer{"ng-key-0123456789ab", "crowdsec-nginx-bouncer/v1.1.0"}
	traefik  = bouncer{"tr-key-0123456789ab", "Crowdsec-Bouncer-Traefik-Plugin/1.X.X"}
)

const bouncerTokens = `tokens:
  - {name: firewall, token: fw-key-0123456789ab, scopes: [read]}
  - {name: nginx, token: ng-key-0123456789ab, scopes: [read]}
  - {name: traefik, token: tr-key-0123456789ab, scopes: [read]}
  - {name: checker, token: checker-0123456789, scopes: [check]}
`

type bouncer struct{ key, agent string }

// ask sends a request over a connection and returns status and body.
func (b bouncer) ask(t *testing.T, at, method, target string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at+target, nil)
	testkit.Must(t, err)
	r.Header.Set("X-Api-Key", b.key)
	r.Header.Set("User-Agent", b.agent)
	resp, err := http.DefaultClient.Do(r)
	testkit.Must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode == 200 && kind != "application/json" {
		t.Errorf("%s %s: content type %q", method, target, kind)
	}
	return resp.StatusCode, string(body)
}

// want expects "+value duration scenario -value" of a pull or of live decisions.
func (b bouncer) want(t *testing.T, at, target, want string) {
	t.Helper()
	status, body := b.ask(t, at, "GET", target)
	type decision struct{ Value, Duration, Scenario string }
	var changes struct{ New, Deleted []decision }
	into := any(&changes)
	if !strings.Contains(target, "/stream") {
		into = &changes.New
	}
	if err := json.Unmarshal([]byte(body), into); status != 200 || err != nil {
		t.Fatalf("%s: %d %s", target, status, body)
	}
	var out []string
	for _, d := range changes.New {
		out = append(out, "+"+d.Value+" "+d.Duration+" "+d.Scenario)
	}
	for _, d := range changes.Deleted {
		out = append(out, "-"+d.Value)
	}
	if got := strings.Join(out, " "); got != want {
		t.Errorf("%s asks %s and gets %q, want %q", b.agent, target, got, want)
	}
}

var bouncerRules = []*windows.Rule{
	{Name: "api", Match: "ip:192.*", Windows: []windows.Window{{Limit: 1, Per: time.Minute}}},
	{Name: "login", Match: "ip:2001:*", Windows: []windows.Window{{Limit: 1, Per: time.Hour}}},
	{Name: "quiet", Match: "ip:*", Windows: []windows.Window{{Limit: 1, Per: time.Minute}}},
}

const startup, pull = "/v1/decisions/stream?startup=true&scopes=ip%2Crange", "/v1/decisions/stream?startup=false"

// Throttles of the chosen rules and blocks of addresses and networks reach bouncers, live and as changes. Bouncers are
// told apart, each hears of a change once, and HEAD is no pull. (internal/crowdsec proves what the changes are.)
func TestBouncers(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), bouncerRules...)
	path := testkit.WriteFile(t, "tokens.yml", bouncerTokens)
	tokens, err := access.NewTokens(path, prometheus.NewRegistry(), nil)
	testkit.Must(t, err)
	server := httptest.NewServer(httpapi.NewRouter(tokens, w.server.Routes(nil)...))
	defer server.Close()
	at := server.URL

	// nginx compares the whole body with null
	if _, body := nginx.ask(t, at, "GET", "/v1/decisions?ip=192.0.2.1"); body != "null" {
		t.Errorf("no decision is %q", body)
	}
	firewall.want(t, at, startup, "")
	for _, key := range []string{"ip:192.0.2.1", "ip:2001:db8::/64", "ip:198.51.100.1"} {
		wantStatus(t, w.get(t, key), 200)
	}
	for _, target := range []string{"ip:203.0.113.7", "ip:203.0.113.64/26", "user:203.0.113.128/26"} {
		wantStatus(t, put(t, w, target, `{"block":true,"for":"2h","reason":"abuse"}`), 200)
	}
	wantStatus(t, put(t, w, "ip:203.0.113.192/26", `{"exempt":true}`), 200)
	w.advance(time.Second)
	for _, target := range []string{"/v1/decisions", pull} {
		if status, body := firewall.ask(t, at, "HEAD", target); status != 200 || body != "" {
			t.Errorf("HEAD %s: %d %q", target, status, body)
		}
	}
	const one = "+192.0.2.1 59s api"
	const all = one +
		" +203.0.113.7 1h59m59s override +203.0.113.64/26 1h59m59s override +2001:db8::/64 59m59s login"
	firewall.want(t, at, pull, all)
	firewall.want(t, at, pull, "")
	traefik.want(t, at, startup, all)
	nginx.want(t, at, "/v1/decisions?ip=192.0.2.1", one)
	for _, target := range []string{"ip:203.0.113.7", "ip:203.0.113.64%2F26"} {
		wantStatus(t, w.do(t, "DELETE", "/v1/overrides/"+target, ""), 200)
	}
	w.advance(time.Second)
	firewall.want(t, at, pull, "-203.0.113.64/26 -203.0.113.7")
	traefik.want(t, at, pull, "-203.0.113.64/26 -203.0.113.7")

	// A token of another scope, and one that is revoked.
	if status, _ := (bouncer{checker, "curl"}).ask(t, at, "GET", pull); status != 403 {
		t.Errorf("with the scope check: %d", status)
	}
	testkit.Must(t, os.WriteFile(path, []byte(strings.Replace(bouncerTokens, firewall.key,
		"another-0123456789", 1)), 0o600))
	testkit.Must(t, tokens.Reload())
	if status, body := firewall.ask(t, at, "GET", pull); status != 401 || strings.Contains(body, "192.0.2") {
		t.Errorf("with a revoked key: %d %s", status, body)
	}
}

// If a proxy asks for a check, the application's own X-Api-Key is not used as a token.
func TestAPIKeyIsOfBouncersAlone(t *testing.T) {
	w := newWorld(t, streamtest.AnyRedis(t), bouncerRules...)
	router := httpapi.NewRouter(newTokens(t), w.server.Routes(nil)...)
	for _, route := range router.Routes() {
		target := route.Path
		if strings.HasSuffix(target, "/") {
			target += "x"
		}
		rec, r := httptest.NewRecorder(), httptest.NewRequest(route.Method, target, nil)
		r.Header.Set("X-Api-Key", operator)
		router.ServeHTTP(rec, r)
		if ours := strings.HasPrefix(route.Path, "/v1/decisions"); !route.Open && ours != (rec.Code == 200) ||
			!ours && !route.Open && rec.Code != 401 {
			t.Errorf("%s %s with X-Api-Key: %d %s", route.Method, target, rec.Code, rec.Body)
		}
	}
	// It does not matter if there is a valid token too.
	rec, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/decisions", nil)
	r.Header.Set("X-Api-Key", "of-the-application")
	r.Header.Set("Authorization", "Bearer "+reader)
	if router.ServeHTTP(rec, r); rec.Code != 200 {
		t.Errorf("with a good token and another X-Api-Key: %d %s", rec.Code, rec.Body)
	}
}

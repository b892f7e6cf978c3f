package partners

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const proxies = "../../examples/proxies/"

// Traefik, with the configuration in examples, passes allowed requests on and answers a denial like streamcounter,
// whatever a client claims. While streamcounter hangs or is down, each request is refused soon.
func TestTraefik(t *testing.T) {
	var reached, tokens atomic.Int64
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		if r.Header.Get("X-Streamcounter-Token") != "" {
			tokens.Add(1)
		}
		_, _ = io.WriteString(w, "the backend")
	}))
	defer backend.Close()
	limiter := streamcounter(t, nil, "serve", "--redis", streamtest.OwnRedis(t).URL(), "--http", "127.0.0.1:0",
		"--grpc", "", "--rules", absolute(t, proxies+"rules.yml"),
		"--extractors", absolute(t, proxies+"extractors.yml"),
		"--check-timeout", "10s", // the machine may be busy
		"--tokens", testkit.WriteFile(t, "tokens.yml",
			"tokens: [{name: proxy, token: TOKEN-0123456789, scopes: [check]}]"))
	web := startTraefik(t, limiter.at("http"), backend.Listener.Addr().String())

	allowed := func(from string) (bool, string) {
		resp, err := request(t, "GET", web, from)
		return err == nil && resp.StatusCode == 200, fmt.Sprint(resp, err)
	}
	for i := range 5 {
		if ok, got := allowed("127.0.0.7"); !ok {
			t.Fatalf("request %d: %s", i, got)
		}
	}
	before := reached.Load()
	for _, claim := range []string{"", "X-Forwarded-For: 198.51.100.1", "X-Real-IP: 198.51.100.1",
		"X-Forwarded-Uri: /other", "X-Streamcounter-Token: TOKEN"} {
		resp, err := request(t, "GET", web, "127.0.0.7", claim)
		if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" ||
			!strings.HasPrefix(resp.Header.Get("RateLimit"), `"web-1h";r=0;t=`) {
			t.Errorf("with %q: %v, %v, want 429 with Retry-After and RateLimit", claim, resp, err)
		}
	}
	if reached.Load() != before || tokens.Load() > 0 {
		t.Errorf("the backend received %d denied requests and %d tokens", reached.Load()-before, tokens.Load())
	}
	if ok, got := allowed("127.0.0.8"); !ok {
		t.Errorf("another address: %s", got)
	}

	// refused sends three requests, because a busy machine may be slow once.
	refused := func(what string, want int) {
		t.Helper()
		soonest := time.Hour
		for range 3 {
			began := time.Now()
			if resp, err := request(t, "GET", web, "127.0.0.8"); err != nil || resp.StatusCode != want {
				t.Errorf("streamcounter %s: %v, %v, want %d", what, resp, err, want)
			}
			soonest = min(soonest, time.Since(began))
		}
		t.Logf("streamcounter %s: refused after %v", what, soonest)
		if soonest > 2*time.Second {
			t.Errorf("streamcounter %s: refused after %v, want 2s at most", what, soonest)
		}
	}
	testkit.Must(t, limiter.Cmd.Process.Signal(syscall.SIGSTOP))
	refused("hangs", http.StatusGatewayTimeout)
	limiter.stop()
	refused("is away", http.StatusBadGateway)
}

// The entry point over which Traefik calls streamcounter keeps Traefik's own headers about the request, and nothing
// that the client claims reaches streamcounter.
func TestTraefikForwards(t *testing.T) {
	asked := make(chan *http.Request, 1)
	limiter := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r:
		default: // not needed: it is one of the requests until Traefik is ready
		}
	}))
	defer limiter.Close()
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer backend.Close()
	web := startTraefik(t, limiter.Listener.Addr().String(), backend.Listener.Addr().String())
	<-asked // the first request
	resp, err := request(t, "POST", web, "127.0.0.7", "X-Forwarded-For: 198.51.100.1", "X-Forwarded-Uri: /other",
		"X-Forwarded-Method: GET", "X-Forwarded-Host: other", "X-Forwarded-Proto: https",
		"X-Streamcounter-Token: CLAIMED", "X-Api-Key: KEY", "Origin: http://x", "Sec-Fetch-Site: cross-site")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	r := <-asked
	for name, want := range map[string]string{"X-Forwarded-For": "127.0.0.7, 127.0.0.1",
		"X-Forwarded-Uri": "/page?q=1", "X-Forwarded-Method": "POST", "X-Forwarded-Host": web,
		"X-Forwarded-Proto": "http", "X-Streamcounter-Token": "TOKEN-0123456789", "X-Api-Key": "KEY",
		"Origin": "", "Sec-Fetch-Site": ""} {
		if got := strings.Join(r.Header.Values(name), ", "); got != want {
			t.Errorf("streamcounter receives %s %q, want %q", name, got, want)
		}
	}
	if r.Method != "GET" || r.URL.String() != "/v1/check?extractor=by-address" {
		t.Errorf("Traefik asks %s %s", r.Method, r.URL)
	}
}

// startTraefik runs Traefik with the configuration in examples until it hands on a request, and returns its address.
func startTraefik(t testing.TB, limiter, backend string) (web string) {
	t.Helper()
	web, check := testkit.FreeAddr(t), testkit.FreeAddr(t)
	config := func(name string, more ...string) string {
		text, err := os.ReadFile(proxies + name)
		testkit.Must(t, err)
		replacer := strings.NewReplacer(append(more, "127.0.0.1:8079", check)...)
		return testkit.WriteFile(t, name, replacer.Replace(string(text)))
	}
	dynamic := config("traefik.yml", "127.0.0.1:8080", limiter, "127.0.0.1:9000", backend,
		"Token: TOKEN", "Token: TOKEN-0123456789")
	start(t, nil, built(t, "traefik"), "--configFile="+config("traefik-static.yml", `":80"`, web,
		"filename: traefik.yml", "filename: "+dynamic))
	streamtest.Eventually(t, "Traefik hands on", func() (bool, string) {
		resp, err := request(t, "GET", web, "127.0.0.9")
		return err == nil && resp.StatusCode == 200, fmt.Sprint(resp, err)
	})
	return web
}

// request sends a request to a server on loopback from one of the loopback's addresses.
func request(t testing.TB, method, addr, from string, headers ...string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/page?q=1", nil)
	testkit.Must(t, err)
	for _, h := range headers {
		if name, value, ok := strings.Cut(h, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, addr)
		}}}
	resp, err := c.Do(r)
	if err == nil {
		_ = resp.Body.Close()
	}
	return resp, err
}

package proxies_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// start runs a program until the test ends. It ends cleanly, because that of nginx has processes of its own.
func start(t *testing.T, env []string, name string, args ...string) *streamtest.Child {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	p := streamtest.Run(t, cmd)
	t.Cleanup(func() { p.EndsOn(os.Interrupt) })
	return p
}

// site is a backend behind a proxy that calls a real streamcounter.
type site struct {
	t     *testing.T
	port  map[string]string // port in the example → port of the test
	reach atomic.Int64      // requests that reached the backend
	token atomic.Bool       // a token reached the backend
	asked *streamtest.Child
}

// newSite gives the proxy a token with the scope. Without a scope, streamcounter has no tokens.
func newSite(t *testing.T, scope string) *site {
	t.Helper()
	s := &site{t: t, port: map[string]string{"8000": fmt.Sprint(testkit.FreePort(t)),
		"8080": fmt.Sprint(testkit.FreePort(t))}}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.reach.Add(1)
		if r.Header.Get(access.TokenHeader) != "" {
			s.token.Store(true)
		}
		if r.URL.Path == "/forbidden" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = io.WriteString(w, "the backend")
	}))
	t.Cleanup(backend.Close)
	_, s.port["9000"], _ = net.SplitHostPort(backend.Listener.Addr().String())
	args := []string{"serve", "--redis", streamtest.Redis(t), "--prefix", streamtest.Prefix(t), "--rules", "rules.yml",
		"--extractors", "extractors.yml", "--http", "127.0.0.1:" + s.port["8080"], "--grpc", "127.0.0.1:0",
		"--check-timeout", "10s"}
	if scope != "" {
		args = append(args, "--tokens", testkit.WriteFile(t, "tokens.yml",
			"tokens: [{name: proxy, token: TOKEN-0123456789, scopes: ["+scope+"]}]"))
	}
	s.asked = start(t, nil, streamtest.Build(t), args...)
	s.await("8080", "/readyz")
	return s
}

// await waits until a server listens, and answers the path if there is one: the proxy would count it.
func (s *site) await(port, path string) {
	s.t.Helper()
	streamtest.Eventually(s.t, "port "+port+" answers", func() (bool, string) {
		if path == "" {
			c, err := net.Dial("tcp", "127.0.0.1:"+s.port[port])
			return err == nil && c.Close() == nil, fmt.Sprint(err)
		}
		resp, err := http.Get("http://127.0.0.1:" + s.port[port] + path)
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode < 500, resp.Status
	})
}

// configure returns an example with the test's ports and token in it, and further replacements.
func (s *site) configure(name string, replaced ...string) string {
	s.t.Helper()
	b, err := os.ReadFile(name)
	testkit.Must(s.t, err)
	text := string(b)
	for example, own := range s.port {
		text = strings.ReplaceAll(text, "127.0.0.1:"+example, "127.0.0.1:"+own)
	}
	text = strings.NewReplacer("# proxy_set_header X-Streamcounter-Token TOKEN",
		"proxy_set_header X-Streamcounter-Token TOKEN-0123456789", "# header_up", "header_up").Replace(text)
	text = strings.NewReplacer(replaced...).Replace(text)
	path := filepath.Join(s.t.TempDir(), name)
	testkit.Must(s.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// get sends a request through the proxy, from an address of this machine's own network.
func (s *site) get(from, path string, headers ...string) *http.Response {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), "GET", "http://127.0.0.1:"+s.port["8000"]+path, nil)
	testkit.Must(s.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name != "" {
			r.Header.Set(name, value)
		}
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dialer.DialContext}}
	resp, err := c.Do(r)
	testkit.Must(s.t, err)
	testkit.Must(s.t, resp.Body.Close())
	return resp
}

// limits proves that exactly five requests of an address pass, whatever the sixth claims to be.
func (s *site) limits() {
	s.t.Helper()
	// Browsers send the last three, and without tokens streamcounter refuses pages of other sites.
	for _, header := range []string{"Authorization: Bearer of-the-application", "Content-Encoding: gzip",
		"Origin: http://x", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"} {
		if resp := s.get("127.0.0.7", "/page?q=1", header); resp.StatusCode != 200 {
			s.t.Fatalf("with %q: %s", header, resp.Status)
		}
	}
	before := s.reach.Load()
	for _, claim := range []string{"", "X-Forwarded-For: 198.51.100.1", "X-Real-IP: 198.51.100.1",
		"X-Forwarded-Uri: /other", "X-Streamcounter-Token: TOKEN", "Idempotency-Key: one", "Content-Encoding: gzip",
		"Origin: http://x", "Sec-Fetch-Site: cross-site"} {
		resp := s.get("127.0.0.7", "/page", claim)
		if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" ||
			!strings.HasPrefix(resp.Header.Get("RateLimit"), `"web-1h";r=0;t=`) {
			s.t.Errorf("with %q: %s %v, want 429 with Retry-After and RateLimit", claim, resp.Status, resp.Header)
		}
	}
	if got := s.reach.Load(); got != before {
		s.t.Errorf("%d requests that were denied came to the backend", got-before)
	}
	if resp := s.get("127.0.0.8", "/"); resp.StatusCode != 200 {
		s.t.Errorf("another address: %s", resp.Status)
	}
	if s.token.Load() {
		s.t.Error("our token came to the backend")
	}
}

// refusesUnreadable proves that the proxy itself refuses a request with a header that it accepts and streamcounter's
// HTTP server does not. Go's client would not send it, and the backend, another server of Go, would answer 400.
func (s *site) refusesUnreadable(header string, want int) {
	s.t.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:"+s.port["8000"])
	testkit.Must(s.t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n\r\n", header)
	testkit.Must(s.t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	testkit.Must(s.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != want {
		s.t.Errorf("with %q: %s, want %d", header, resp.Status, want)
	}
}

// answersWithout proves what clients get, and how soon, while streamcounter hangs and while it is down.
func (s *site) answersWithout(hangs, away int) {
	s.t.Helper()
	ask := func(what string, want int) {
		s.t.Helper()
		began := time.Now()
		if resp := s.get("127.0.0.7", "/"); resp.StatusCode != want || time.Since(began) > 5*time.Second {
			s.t.Errorf("streamcounter %s: %s after %v, want %d within 5s", what, resp.Status, time.Since(began), want)
		}
	}
	testkit.Must(s.t, streamtest.Suspend(s.asked.Cmd.Process))
	ask("hangs", hangs)
	s.asked.EndsOn(os.Interrupt)
	ask("is away", away)
}

// throughNginx puts the nginx example in front of a site, with replacements for some of its text.
func throughNginx(t *testing.T, scope string, replaced ...string) *site {
	t.Helper()
	bin := streamtest.Program(t, "nginx")
	s := newSite(t, scope)
	dir := t.TempDir()
	main := filepath.Join(dir, "nginx.conf")
	// The frame of a distribution's nginx.conf, and paths that everybody may write.
	text := "daemon off;\nworker_processes 1;\nerror_log stderr;\npid nginx.pid;\nevents {}\n" +
		"http {\naccess_log off;\n" +
		"large_client_header_buffers 8 8k;\n" // twice the default
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += kind + "_temp_path " + filepath.Join(dir, kind) + ";\n"
	}
	testkit.Must(t, os.WriteFile(main, []byte(text+"include "+s.configure("nginx.conf", replaced...)+";\n}\n"), 0o600))
	if os.Geteuid() == 0 { // its worker runs without root's rights, and must still reach its files
		testkit.Must(t, os.Chmod(dir, 0o755))
	}
	start(t, nil, bin, "-p", dir, "-c", main, "-e", "stderr")
	s.await("8000", "")
	return s
}

func TestNginx(t *testing.T) {
	t.Run("a token", func(t *testing.T) { testNginx(t, throughNginx(t, "check")) })
	t.Run("no tokens", func(t *testing.T) { throughNginx(t, "").limits() })
	// One wrong name must not throttle every customer. The reason is logged once. (package httpapi proves that a wrong
	// token does neither.)
	t.Run("an extractor that is gone", func(t *testing.T) {
		const says = `no extractor \"gone\"`
		s := throughNginx(t, "check", "by-address", "gone")
		for range 7 {
			if resp := s.get("127.0.0.7", "/"); resp.StatusCode != 200 {
				t.Fatalf("%s, want the backend's answer", resp.Status)
			}
		}
		s.asked.EndsOn(os.Interrupt)
		if n := strings.Count(s.asked.String(), says); n != 1 {
			t.Errorf("the log says %s %d times:\n%s", says, n, s.asked)
		}
	})
}

func testNginx(t *testing.T, s *site) {
	s.limits()
	if resp := s.get("127.0.0.9", "/forbidden"); resp.StatusCode != 403 ||
		resp.Header.Get("RateLimit") != `"web-1h";r=4;t=3600` {
		t.Errorf("the backend's own 403: %s %v", resp.Status, resp.Header)
	}
	// As long as nginx allows by default, and longer than streamcounter reads: it must not pass as an error of the
	// check.
	long := []string{}
	for i := range 6 {
		long = append(long, fmt.Sprintf("X-Long-%d: %s", i, strings.Repeat("x", 8000)))
	}
	if resp := s.get("127.0.0.11", "/", long[:4]...); resp.StatusCode != 200 || resp.Header.Get("RateLimit") == "" {
		t.Errorf("with 32 kB of headers: %s %v, want 200 with RateLimit", resp.Status, resp.Header)
	}
	if resp := s.get("127.0.0.11", "/", long...); resp.StatusCode != 429 {
		t.Errorf("with 48 kB of headers: %s, want 429", resp.Status)
	}
	s.refusesUnreadable("X-Any: a\x01b", http.StatusTooManyRequests)
	s.refusesUnreadable("X-Api-Key: a\x7fb", http.StatusTooManyRequests)
	s.answersWithout(200, 200) // the backend's answer
}

// throughCaddy puts the Caddy example in front of a site.
func throughCaddy(t *testing.T, scope string) *site {
	t.Helper()
	bin := streamtest.Program(t, "caddy")
	s := newSite(t, scope)
	path := s.configure("Caddyfile")
	b, err := os.ReadFile(path)
	testkit.Must(t, err)
	testkit.Must(t, os.WriteFile(path, append([]byte("{\n\tadmin off\n}\n"), b...), 0o600))
	home := t.TempDir()
	start(t, []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home, "XDG_DATA_HOME=" + home,
		"STREAMCOUNTER_TOKEN=TOKEN-0123456789"}, bin, "run", "--config", path, "--adapter", "caddyfile")
	s.await("8000", "")
	return s
}

func TestCaddy(t *testing.T) {
	t.Run("no tokens", func(t *testing.T) { throughCaddy(t, "").limits() })
	t.Run("a token", func(t *testing.T) {
		s := throughCaddy(t, "check")
		s.limits()
		s.answersWithout(504, 502)
	})
}

// Debian has no Traefik, so its files are read as YAML; tools/partners runs Traefik with them. They call a path that
// exists, over a separate entry point that has timeouts, because forwardAuth has no timeout to set.
func TestTraefikAsksForWhatThereIs(t *testing.T) {
	files := map[string]any{} // both files: their fields differ
	for _, name := range []string{"traefik.yml", "traefik-static.yml"} {
		b, err := os.ReadFile(name)
		testkit.Must(t, err)
		testkit.Must(t, yaml.Unmarshal(b, &files))
	}
	for path, want := range map[string]string{
		"http routers web middlewares":                           "[token limit no-token]",
		"http middlewares token headers customRequestHeaders":    "map[" + access.TokenHeader + ":TOKEN]",
		"http middlewares no-token headers customRequestHeaders": "map[" + access.TokenHeader + ":]",
		"http middlewares limit forwardAuth address": "http://127.0.0.1:8079/v1/check?extractor=" +
			"by-address",
		"http middlewares limit forwardAuth maxResponseBodySize":    "65536",
		"entryPoints check address":                                 "127.0.0.1:8079",
		"entryPoints check forwardedHeaders trustedIPs":             "[127.0.0.1/32]",
		"http routers check entryPoints":                            "[check]",
		"http routers check middlewares":                            "[no-origin]",
		"http middlewares no-origin headers customRequestHeaders":   "map[Origin: Sec-Fetch-Site:]",
		"http routers check service":                                "streamcounter",
		"http services streamcounter loadBalancer serversTransport": "streamcounter",
		"http serversTransports streamcounter forwardingTimeouts": "map[dialTimeout:500ms " +
			"responseHeaderTimeout:500ms]",
	} {
		var got any = files
		for name := range strings.FieldsSeq(path) {
			fields, _ := got.(map[string]any)
			got = fields[name]
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s is %v, want %s", path, got, want)
		}
	}
}

func TestFilesLoad(t *testing.T) {
	if _, err := windows.Load("rules.yml"); err != nil {
		t.Error(err)
	}
	if _, err := access.NewExtractors("extractors.yml", nil); err != nil {
		t.Error(err)
	}
}

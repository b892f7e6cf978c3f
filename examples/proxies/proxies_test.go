package proxies_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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

// start runs a program until the test ends, and returns a function that ends it before.
func start(t *testing.T, env []string, name string, args ...string) (process *os.Process, stop func(),
	said *testkit.Log) {
	t.Helper()
	said = &testkit.Log{}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = said, said, append(os.Environ(), env...)
	testkit.Must(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("%s:\n%s", name, said)
		}
	})
	return cmd.Process, stop, said
}

// site is a backend behind a proxy that calls a real streamcounter.
type site struct {
	t     *testing.T
	port  map[string]string // port in the example → port of the test
	reach atomic.Int64      // requests that reached the backend
	token atomic.Bool       // a token reached the backend
	away  func()            // ends streamcounter
	asked *os.Process       // streamcounter
	log   *testkit.Log      // of streamcounter
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
	s.asked, s.away, s.log = start(t, nil, streamtest.Build(t), args...)
	s.answers("8080", "/readyz")
	return s
}

// answers waits until a server listens.
func (s *site) answers(port, path string) {
	s.t.Helper()
	streamtest.Eventually(s.t, 30*time.Second, "port "+port+" answers", func() (bool, string) {
		resp, err := http.Get("http://127.0.0.1:" + s.port[port] + path)
		if err != nil {
			return false, err.Error()
		}
		defer resp.Body.Close()
		return resp.StatusCode < 500, resp.Status
	})
}

// listens waits until the proxy listens.
func (s *site) listens() {
	s.t.Helper()
	streamtest.Eventually(s.t, 30*time.Second, "the proxy listens", func() (bool, string) {
		c, err := net.Dial("tcp", "127.0.0.1:"+s.port["8000"])
		if err != nil {
			return false, err.Error()
		}
		return c.Close() == nil, ""
	})
}

// configure returns an example with the test's ports and token in it.
func (s *site) configure(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(name)
	testkit.Must(s.t, err)
	text := string(b)
	for example, own := range s.port {
		text = strings.ReplaceAll(text, "127.0.0.1:"+example, "127.0.0.1:"+own)
	}
	text = strings.NewReplacer("# proxy_set_header X-Streamcounter-Token TOKEN",
		"proxy_set_header X-Streamcounter-Token TOKEN-0123456789", "# header_up", "header_up").Replace(text)
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
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, addr)
		}}}
	resp, err := c.Do(r)
	testkit.Must(s.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.Must(s.t, err)
	resp.Body = io.NopCloser(bytes.NewReader(body))
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
	testkit.Must(s.t, streamtest.Suspend(s.asked))
	s.t.Cleanup(func() { _ = streamtest.Resume(s.asked) }) // before the stop: a frozen process does not react
	ask("hangs", hangs)
	testkit.Must(s.t, streamtest.Resume(s.asked))
	s.away()
	ask("is away", away)
}

// throughNginx puts the nginx example in front of a site.
func throughNginx(t *testing.T, scope string) *site {
	t.Helper()
	bin := streamtest.Program(t, "nginx")
	s := newSite(t, scope)
	dir := t.TempDir()
	main := filepath.Join(dir, "nginx.conf")
	// The frame of a distribution's nginx.conf, and paths that everybody may write.
	text := "daemon off;\nworker_processes 1;\nerror_log stderr;\npid nginx.pid;\nevents {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += kind + "_temp_path " + filepath.Join(dir, kind) + ";\n"
	}
	if err := os.WriteFile(main, []byte(text+"include "+s.configure("nginx.conf")+";\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // its worker runs without root's rights, and must still reach its files
		testkit.Must(t, os.Chmod(dir, 0o755))
	}
	start(t, nil, bin, "-p", dir, "-c", main, "-e", "stderr")
	s.listens()
	return s
}

func TestNginx(t *testing.T) {
	t.Run("a token", func(t *testing.T) { testNginx(t, throughNginx(t, "check")) })
	t.Run("no tokens", func(t *testing.T) { throughNginx(t, "").limits() })
	// One wrong scope must not throttle every customer. The reason is logged once.
	t.Run("a token for something else", func(t *testing.T) {
		s := throughNginx(t, "append")
		for range 7 {
			if resp := s.get("127.0.0.7", "/"); resp.StatusCode != 200 {
				t.Fatalf("%s, want the backend's answer", resp.Status)
			}
		}
		s.away()
		if n := strings.Count(s.log.String(), "the token proxy lacks the scope check"); n != 1 {
			t.Errorf("the log says it %d times", n)
		}
	})
}

func testNginx(t *testing.T, s *site) {
	s.limits()
	if resp := s.get("127.0.0.9", "/forbidden"); resp.StatusCode != 403 ||
		resp.Header.Get("RateLimit") != `"web-1h";r=4;t=3600` {
		t.Errorf("the backend's own 403: %s %v", resp.Status, resp.Header)
	}
	// As long as nginx allows: an error of the check would let the request pass.
	long := []string{}
	for i := range 4 {
		long = append(long, fmt.Sprintf("X-Long-%d: %s", i, strings.Repeat("x", 8000)))
	}
	if resp := s.get("127.0.0.7", "/", long...); resp.StatusCode != 429 {
		t.Errorf("with 32 kB of headers: %s, want 429", resp.Status)
	}
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
	if err := os.WriteFile(path, append([]byte("{\n\tadmin off\n}\n"), b...), 0o600); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	start(t, []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home, "XDG_DATA_HOME=" + home,
		"STREAMCOUNTER_TOKEN=TOKEN-0123456789"}, bin, "run", "--config", path, "--adapter", "caddyfile")
	s.listens()
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

// Debian has no Traefik, so its files are read as YAML. They call paths that exist, over a separate entry point that
// has timeouts, because forwardAuth has no timeout to set.
func TestTraefikAsksForWhatThereIs(t *testing.T) {
	var file struct {
		HTTP struct {
			Routers map[string]struct {
				EntryPoints []string `yaml:"entryPoints"`
				Middlewares []string
				Service     string
			}
			Middlewares map[string]struct {
				ForwardAuth struct {
					Address string
					Most    int `yaml:"maxResponseBodySize"`
				} `yaml:"forwardAuth"`
				Headers struct {
					CustomRequestHeaders map[string]string `yaml:"customRequestHeaders"`
				}
			}
			Services map[string]struct {
				LoadBalancer struct {
					Transport string `yaml:"serversTransport"`
				} `yaml:"loadBalancer"`
			}
			Transports map[string]struct {
				Timeouts struct {
					Dial   time.Duration `yaml:"dialTimeout"`
					Answer time.Duration `yaml:"responseHeaderTimeout"`
				} `yaml:"forwardingTimeouts"`
			} `yaml:"serversTransports"`
		}
	}
	var static struct {
		EntryPoints map[string]struct {
			Address   string
			Forwarded struct {
				Trusted []string `yaml:"trustedIPs"`
			} `yaml:"forwardedHeaders"`
		} `yaml:"entryPoints"`
	}
	for name, into := range map[string]any{"traefik.yml": &file, "traefik-static.yml": &static} {
		b, err := os.ReadFile(name)
		testkit.Must(t, err)
		testkit.Must(t, yaml.Unmarshal(b, into))
	}
	m := file.HTTP.Middlewares
	at, err := url.Parse(m["limit"].ForwardAuth.Address)
	if err != nil || at.Path != "/v1/check" || at.Query().Get("extractor") != "by-address" {
		t.Errorf("it asks for %s, %v", at, err)
	}
	if n := m["limit"].ForwardAuth.Most; n < 4096 || n > 1<<20 {
		t.Errorf("it takes an answer of %d bytes", n)
	}
	if got := fmt.Sprint(file.HTTP.Routers["web"].Middlewares); got != "[token limit no-token]" ||
		m["token"].Headers.CustomRequestHeaders[access.TokenHeader] != "TOKEN" {
		t.Errorf("middlewares %s, %v", got, m)
	}
	if v, ok := m["no-token"].Headers.CustomRequestHeaders[access.TokenHeader]; !ok || v != "" {
		t.Errorf("the token is not taken out: %v", m["no-token"])
	}
	router := file.HTTP.Routers["check"]
	if got := fmt.Sprint(router.Middlewares, m["no-origin"].Headers.CustomRequestHeaders); got !=
		"[no-origin] map[Origin: Sec-Fetch-Site:]" {
		t.Errorf("what the check keeps from streamcounter: %s", got)
	}
	entry := static.EntryPoints[router.EntryPoints[0]]
	if entry.Address != at.Host || fmt.Sprint(entry.Forwarded.Trusted) != "[127.0.0.1/32]" {
		t.Errorf("%s is asked, and the entry point is %+v", at.Host, entry)
	}
	wait := file.HTTP.Transports[file.HTTP.Services[router.Service].LoadBalancer.Transport].Timeouts
	if wait.Dial <= 0 || wait.Answer <= 0 || wait.Dial+wait.Answer > time.Second {
		t.Errorf("it waits for %+v", wait)
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

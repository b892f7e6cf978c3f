package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

func keysOf(t testing.TB, partitions int) *stream.Keys {
	t.Helper()
	k, err := stream.NewKeys("sc", partitions)
	testkit.Must(t, err)
	return k
}

func look(t testing.TB, c redis.UniversalClient) []doctor.Finding {
	t.Helper()
	return lookAt(t, c, nil)
}

// lookAt looks from a machine with another clock.
func lookAt(t testing.TB, c redis.UniversalClient, now func() time.Time) []doctor.Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return doctor.Redis(ctx, c, doctor.RedisConfig{Keys: keysOf(t, 16), Retention: stream.DefaultRetention, Now: now})
}

func lookNATS(t testing.TB, url string, config doctor.NATSConfig, opts ...nats.Option) []doctor.Finding {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.NoReconnect())...)
	testkit.Must(t, err)
	defer nc.Close()
	config.Prefix = "sc"
	return doctor.NATS(t.Context(), nc, config)
}

// expect checks that there are findings of a check at a severity, and that one of them contains all parts.
func expect(t testing.TB, findings []doctor.Finding, check string, severity doctor.Severity, parts ...string) {
	t.Helper()
	for _, f := range findings {
		text, err := json.Marshal(f)
		testkit.Must(t, err)
		if f.Check == check && f.Severity == severity && !slices.ContainsFunc(parts, func(p string) bool {
			return !strings.Contains(f.Found+"\n"+f.Why+"\n"+f.Fix, p)
		}) {
			return
		}
		if f.Check == check {
			t.Logf("%s", text)
		}
	}
	t.Errorf("no %s of %s that says %q", severity, check, parts)
}

var passing = []struct {
	what *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "HOST:PORT"},
	{regexp.MustCompile(`\d+(\.\d+)? [KMGT]?B\b`), "SIZE"},
	{regexp.MustCompile(`SIZE of SIZE used \(\d+ %\)`), "SIZE of SIZE used (N %)"},
	{regexp.MustCompile(`\b[0-9]+m[0-9]+s old`), "AGE old"},
}

// golden compares a report with testdata/name.json, except what differs between machines and runs.
func golden(t *testing.T, name string, findings []doctor.Finding) {
	t.Helper()
	findings = slices.Clone(findings)
	for i := range findings {
		f := &findings[i]
		if strings.HasSuffix(f.Check, ".version") && f.Severity == doctor.OK { // Found and Why depend on the version
			f.Found, f.Why = "VERSION", ""
		}
		for _, p := range passing {
			f.Found = p.what.ReplaceAllString(f.Found, p.is)
		}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	testkit.Must(t, encoder.Encode(doctor.NewReport(findings)))
	testkit.Golden(t, filepath.Join("testdata", name+".json"), b.String())
}

// shipped returns deploy/redis.conf as arguments, except where it listens and stores its data.
func shipped(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile("../../deploy/redis.conf")
	testkit.Must(t, err)
	var args []string
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name[0] == '#' || name == "dir" || name == "bind" {
			continue
		}
		args = append(args, "--"+name, strings.Trim(value, `"`))
	}
	return args
}

// monitor answers /jsz as a server's monitoring port does.
func monitor(t testing.TB, jsz string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jsz" && r.URL.Query().Get("config") == "true" {
			_, _ = io.WriteString(w, jsz)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

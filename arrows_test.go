package streamcounter_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

const module = "github.com/streamcounter/streamcounter/"

// arrows: package → the packages of ours that it may import. Imports go one
// way; a package that is not here is a room that nobody has planned.
var arrows = map[string][]string{
	"api":                  {},
	"internal/headers":     {"api"},
	"lua":                  {},
	"internal/entry":       {"api"},
	"internal/eventlog":    {"internal/entry", "internal/redisclient", "stream"},
	"internal/redisclient": {"internal/pause"},
	"stream":               {"api", "internal/entry", "internal/pause", "internal/redisclient"},
	"internal/document":    {"internal/english"},
	"internal/glob":        {"api"},
	"internal/overrides":   {"api", "internal/eventlog", "internal/glob", "internal/pause", "lua", "stream"},
	"windows": {"api", "internal/document", "internal/english", "internal/glob", "internal/inprocess",
		"internal/overrides", "internal/reload", "lua"},
	"internal/counters": {"api", "internal/entry", "internal/eventlog", "internal/inprocess", "internal/overrides",
		"internal/redisclient", "lua", "stream", "windows"},
	"internal/inprocess": {"api"},
	"internal/reservations": {"api", "internal/counters", "internal/eventlog", "internal/redisclient", "lua", "stream",
		"windows"},
	"consumers": {"api", "internal/counters", "internal/entry", "internal/eventlog", "internal/overrides",
		"internal/pause", "internal/redisclient", "internal/reservations", "internal/tracing", "lua", "stream",
		"windows"},
	"internal/subscription": {},
	"alerts":                {"api", "internal/pause", "internal/subscription", "internal/tracing"},
	"alerts/sinks": {"alerts", "api", "internal/document", "internal/glob", "internal/pause", "internal/redact",
		"internal/reload", "windows"},
	"internal/reload":       {},
	"internal/tracing":      {},
	"internal/tracing/otlp": {},
	"internal/lease":        {"api", "internal/pause"},
	"check": {"api", "internal/counters", "internal/lease", "internal/overrides", "internal/pause",
		"internal/redisclient", "internal/reservations", "internal/tracing", "windows"},
	"internal/activity":  {"api", "internal/pause", "internal/redisclient", "stream"},
	"check/access":       {"api", "internal/document", "internal/forwarded", "internal/reload", "internal/tracing"},
	"internal/crowdsec":  {"api"},
	"check/envoy":        {"api", "check", "check/envoy/config", "internal/headers", "internal/inflight", "windows"},
	"internal/inflight":  {},
	"check/envoy/config": {"api", "internal/document", "internal/reload", "windows"},
	"internal/xds":       {"check/envoy/config", "internal/pause"},
	"check/httpapi": {"api", "check", "check/access", "internal/crowdsec", "internal/activity",
		"internal/eventlog", "internal/headers", "internal/inflight", "internal/tracing", "stream"},
	"internal/page": {"api", "check", "check/access", "check/httpapi", "internal/activity"},
	"client": {"api", "internal/inprocess", "internal/lease", "internal/pause", "internal/redact",
		"internal/transport"},
	"client/grpc":        {"api", "internal/redact", "internal/transport"},
	"internal/transport": {"api"},
	"client/guard":       {"api", "internal/natsconn", "internal/subscription"},
	"client/direct": {"api", "check", "internal/counters", "internal/overrides", "internal/redisclient",
		"internal/transport", "stream", "windows"},
	"internal/gate":       {"api", "client", "internal/headers"},
	"client/httpmw":       {"api", "client", "internal/forwarded", "internal/gate"},
	"internal/forwarded":  {"api"},
	"client/grpcmw":       {"api", "client", "internal/gate"},
	"examples/http":       {"client", "client/guard", "client/httpmw"},
	"examples/grpc":       {"client", "client/grpcmw"},
	"examples/guard":      {"api", "client/guard"},
	"internal/replyguard": {},
	"internal/natsconn":   {},
	"internal/redact":     {},
	"internal/pause":      {},
	"internal/measure":    {},
	"internal/compare":    {"api", "internal/counters", "internal/measure", "stream", "windows"},
	"internal/bench/pipeline": {"alerts", "api", "internal/measure", "internal/natsconn", "internal/pause",
		"internal/redact", "stream"},
	"internal/bench/target": {"internal/measure", "internal/redact"},
	"internal/processes":    {"internal/pause", "internal/redisclient", "lua", "stream"},
	"internal/doctor": {"alerts", "deploy", "internal/entry", "internal/eventlog", "internal/processes", "lua",
		"stream"},
	"internal/logging": {},
	"internal/settings": {"check/envoy", "check/envoy/config", "consumers", "internal/english", "internal/logging",
		"internal/redact", "internal/reload", "internal/xds", "stream"},
	"internal/embedded": {},
	"internal/backend": {"internal/embedded", "internal/natsconn", "internal/redact", "internal/replyguard",
		"internal/settings", "stream"},
	"internal/node": {"alerts", "alerts/sinks", "api", "check", "check/access", "check/envoy", "check/envoy/config",
		"check/httpapi", "consumers", "internal/activity", "internal/backend", "internal/counters", "internal/crowdsec",
		"internal/doctor", "internal/eventlog", "internal/natsconn", "internal/overrides", "internal/page",
		"internal/pause",
		"internal/processes", "internal/redact", "internal/reload", "internal/settings", "internal/tracing",
		"internal/tracing/otlp", "internal/wording", "internal/xds", "stream", "windows"},
	"cmd/streamcounter": {"alerts", "alerts/sinks", "api", "check/envoy/config", "check/httpapi", "internal/backend",
		"internal/bench/pipeline", "internal/bench/target", "internal/compare", "internal/doctor",
		"internal/english", "internal/logging", "internal/natsconn", "internal/node", "internal/pause",
		"internal/redact", "internal/settings", "internal/subscription", "internal/wording", "lua", "stream",
		"windows"},
	"internal/wording":        {"internal/english", "lua", "windows"},
	"internal/english":        {},
	"internal/testkit":        {},
	"internal/testreport":     {},
	"internal/streamtest":     {"deploy", "internal/embedded", "internal/testkit"},
	"internal/streamtest/xds": {"internal/streamtest", "internal/testkit"},
	"internal/faults":         {},
	"deploy":                  {},
	"tools/instructions":      {},
	"tools/partners":          {},
	"tools/partners/build":    {"tools/partners"},
	"tools/release":           {},
	"tools/typecheck":         {},
}

func TestImportsGoOneWay(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		room := filepath.ToSlash(filepath.Dir(path))
		allowed, planned := arrows[room]
		if !planned {
			t.Errorf("%s: nobody has planned the package %s", path, room)
			return nil
		}
		seen[room] = true
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if ours, ok := strings.CutPrefix(name, module); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s, which %s may not", path, ours, room)
			}
			if room == "api" && strings.Contains(name, ".") {
				t.Errorf("%s imports %s: api imports the standard library only", path, name)
			}
		}
		return nil
	})
	testkit.Must(t, err)
	for room := range arrows {
		if !seen[room] {
			t.Errorf("%s has no code: is the table old?", room)
		}
	}
}

// Nobody pays for what he does not import: a program with the HTTP client alone
// carries no gRPC, no NATS, no Redis client.
func TestTheHTTPClientIsLight(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./client").Output()
	testkit.Must(t, err)
	for _, dep := range strings.Fields(string(out)) {
		for _, heavy := range []string{"google.golang.org/", "nats-io/", "redis/", "envoyproxy/", "prometheus/"} {
			if strings.Contains(dep, heavy) {
				t.Errorf("client carries %s", dep)
			}
		}
	}
}

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

// layers are the packages of ours, from the bottom up. A package may import those of the layers below its own.
// A package that is not here is a room that nobody has planned.
var layers = []string{
	`internal/pause`,
	`api deploy lua internal/embedded internal/english internal/inflight internal/logging internal/measure
		internal/natsconn internal/redact internal/reload internal/replyguard internal/subscription
		internal/tracing internal/tracing/otlp`,
	`internal/bench/target internal/document internal/entry internal/forwarded internal/glob internal/headers
		internal/inprocess internal/lease internal/redisclient internal/transport client/guard`,
	`internal/crowdsec stream client client/grpc`,
	`internal/activity internal/eventlog internal/gate internal/processes`,
	`internal/overrides client/grpcmw client/httpmw`,
	`windows examples/grpc examples/guard examples/http`,
	`internal/counters internal/wording`,
	`internal/compare internal/reservations`,
	`alerts check consumers`, // they meet in Redis, and none calls another
	`alerts/sinks check/access check/envoy/config internal/bench/pipeline internal/doctor client/direct`,
	`check/envoy check/httpapi internal/xds`,
	`internal/page internal/settings`,
	`internal/backend`,
	`internal/node`,
	`cmd/streamcounter`,
	`internal/faults internal/testkit tools/instructions tools/partners tools/release
		tools/typecheck`, // tests and tools
	`internal/gate/gatetest internal/streamtest tools/partners/build`,
	`internal/streamtest/xds`,
}

// alone: package → the only packages of ours that it may import. Users import these, and get what these import.
var alone = map[string]string{
	"api": "", "lua": "", "internal/transport": "api",
	"stream": "api internal/entry internal/pause internal/redisclient",
	"windows": `api lua internal/document internal/english internal/glob internal/inprocess internal/overrides
		internal/reload`,
	"alerts":        "api internal/pause internal/subscription internal/tracing",
	"client":        "api internal/inprocess internal/lease internal/pause internal/redact internal/transport",
	"client/grpc":   "api internal/pause internal/redact internal/transport",
	"client/guard":  "api internal/natsconn internal/subscription",
	"client/httpmw": "api client internal/forwarded internal/gate",
	"client/grpcmw": "api client internal/forwarded internal/gate",
	"internal/gate": "api client internal/headers",
}

func TestImportsGoOneWay(t *testing.T) {
	layer, seen := map[string]int{}, map[string]bool{}
	for i, rooms := range layers {
		for room := range strings.FieldsSeq(rooms) {
			layer[room] = i
		}
	}
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
		if _, planned := layer[room]; !planned {
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
			only, isAlone := alone[room]
			if ours, ok := strings.CutPrefix(name, module); ok && (layer[ours] >= layer[room] ||
				isAlone && !slices.Contains(strings.Fields(only), ours)) {
				t.Errorf("%s imports %s, which %s may not", path, ours, room)
			}
			if room == "api" && strings.Contains(name, ".") {
				t.Errorf("%s imports %s: api imports the standard library only", path, name)
			}
		}
		return nil
	})
	testkit.Must(t, err)
	for room := range layer {
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

package streamcounter_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/streamcounter/streamcounter/"

// arrows: package → the packages of ours that it may import. Imports go one
// way; a package that is not here is a room that nobody has planned.
var arrows = map[string][]string{
	"api":               {},
	"api/headers":       {"api"},
	"lua":               {"api"},
	"stream":            {"api"},
	"document":          {},
	"windows":           {"api", "document", "lua", "stream", "windows/inprocess"},
	"windows/inprocess": {},
	"rls":               {"api", "document", "windows"},
	"consumers":         {"api", "lua", "stream", "windows"},
	"alerts":            {"api"},
	"reload":            {},
	"check":             {"api", "api/headers", "document", "reload", "rls", "stream", "windows"},
	"client":            {"api", "api/headers", "windows/inprocess"},
	"client/direct":     {"api", "client", "stream", "windows"},
	"client/gate":       {"api", "api/headers"},
	"client/httpmw":     {"api", "client/gate"},
	"client/grpcmw":     {"api", "client/gate"},
	"examples/http":     {"client", "client/httpmw"},
	"examples/grpc":     {"client", "client/grpcmw"},
	"examples/guard":    {"api", "client"},
	"measure":           {},
	"compare":           {"measure", "stream", "windows"},
	"bench":             {"api", "measure", "stream", "windows"},
	"bench/target":      {"measure"},
	"doctor":            {"alerts", "deploy", "stream", "windows"},
	"cmd/streamcounter": {"api", "alerts", "bench", "bench/target", "check", "compare", "consumers", "doctor", "reload", "rls", "stream", "windows"},
	"streamtest":        {"deploy"},
	"faults":            {},
	"deploy":            {},
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
	if err != nil {
		t.Fatal(err)
	}
	for room := range arrows {
		if !seen[room] {
			t.Errorf("%s has no code: is the table old?", room)
		}
	}
}

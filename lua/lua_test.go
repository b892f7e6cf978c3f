package lua_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
)

// Scripts refuse invalid arguments before they write anything.
func TestScriptsValidateFirst(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, p := t.Context(), streamtest.Prefix(t)
		var own []string
		for _, part := range []string{"{0}", "{1}"} {
			for _, name := range []string{"events", "levels", "due", "outbox", "ids"} {
				own = append(own, p+":"+part+":"+name)
			}
		}
		logs, text := []string{p + ":{0}:log:k", p + ":{1}:log:k"}, planOf(10, 100, 10).Text()
		refused := func(what string, err error) {
			t.Helper()
			if err == nil {
				t.Errorf("%s: no error", what)
			}
			if n := c.Exists(ctx, slices.Concat(own, logs)...).Val(); n != 0 {
				t.Fatalf("%s: it has written %d keys", what, n)
			}
		}
		type list = []any
		fold := func(plans int, parts ...list) error {
			args := slices.Concat(list{"", "g", 1, 2 + 16384*plans, text}, slices.Concat(parts...))
			return failure(ctx, lua.NewCaller(c), "fold", slices.Concat(own, logs), args...)
		}
		section := func(keys, plan, partition float64) list { return list{keys + 8192*(plan+4096*partition)} }
		first, group, second := section(1, 1, 1), list{1, 1, "1-0"}, section(1, 1, 2)
		if err := fold(1, first, group, second, list{1, -1, "1-0"}, group); err != nil {
			t.Fatalf("a fold that is right: %v", err)
		}
		refused("a group cut short", fold(1, first, group, second, list{1}))
		refused("no section for a key", fold(1, first, group))
		refused("more groups than keys", fold(1, first, group, second, group, group))
		refused("a count that is invalid", fold(1, first, group, second, list{"x", 1, "1-0"}))
		refused("an ID that is invalid", fold(1, first, group, second, list{1, 1, "id"}))
		refused("too much", fold(1, first, group, second, group, list{"more"}))
		refused("a partition that is invalid", fold(1, first, group, section(1, 1, 3), group))
		refused("a partition 0", fold(1, first, group, section(1, 1, 0), group))
		refused("half a partition", fold(1, first, group, section(1, 1, 1.5), group))
		refused("half a key", fold(1, first, group, section(0.5, 1, 2), group))
		refused("a plan that is invalid", fold(1, first, group, section(1, 2, 2), group))
		refused("plans cut short", fold(2, first, group, second, group))
		refused("no keys in a section", fold(1, first, group, section(0, 1, 2), second, group))
		refused("no group after one", fold(1, first, group, second, list{1, -1, "1-0"}))

		of := append(own[1:4:4], logs[0])
		call := func(op string, args ...any) error { return failure(ctx, lua.NewCaller(c), op, of, args...) }
		one, two := 1+16384, 2+16384 // as in check.lua: how many partitions, and one plan
		refused("half a unit", call("check", "", one, text, 1.5))
		refused("a check cut short", call("check", "", one, text, "l"))
		refused("a key that is invalid", call("check", "", one, text, "k", 2, 1))
		refused("a call cut short", call("check", "", one, text, "+", 1))
		refused("another plan that is invalid", call("check", "", two, text, 1+8192*(2+4096), 1))
		ten := strings.Replace(text, `"limit":10`, `"limit":"ten"`, 1)
		refused("a limit that is invalid", call("check", "", one, ten, 1))
		refused("a clock that is invalid", call("check", "soon", one, text, 1))
		refused("less than nothing", call("refund", "", -5, text))
		refused("a clock of a reset that is invalid", call("reset", "soon"))
		refused("no rule for the key", call("sweep", ""))
		of = own[:2]
		refused("a letter cut short", call("deadletter", "ack", "g", 10, "1-0", "reason"))
		refused("a way that is invalid", call("deadletter", "take", "g", 10, "1-0", "reason", "body"))
		of = append(own[1:4:4], logs[0])
		if err := call("check", "", one, text, 1); err != nil {
			t.Errorf("a check that is right: %v", err)
		}
	})
}

// Each operation names the files that it includes. With these files, and with each algorithm, it compiles as a script,
// and the script has each file at most once. Only operations that write levels have that code.
func TestEachOperationIsAScript(t *testing.T) {
	const levels = "local function judge("
	writes := []string{"fold", "check", "sweep", "reset", "refund", "override", "expire-overrides", "reserve", "settle",
		"lease-units"}
	paths, err := filepath.Glob("operations/*.lua")
	if err != nil || len(paths) == 0 {
		t.Fatalf("files: %v, %v", paths, err)
	}
	c := redis.NewClient(&redis.Options{Addr: streamtest.EmbeddedRedis(t).Addr()})
	t.Cleanup(func() { _ = c.Close() })
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".lua")
		for _, algorithms := range [][]string{nil, lua.AlgorithmNames()} {
			text := lua.Source(name, algorithms...)
			for _, begins := range []string{"local function read_reserved(", "local function running_totals(",
				"local function open_aligned(", levels} {
				if n := strings.Count(text, begins); n > 1 {
					t.Errorf("%s with %v has %s %d times", name, algorithms, begins, n)
				}
			}
			if err := c.ScriptLoad(t.Context(), text).Err(); err != nil {
				t.Errorf("%s with %v: %v", name, algorithms, err)
			}
		}
		if got := strings.Contains(lua.Source(name), levels); got != slices.Contains(writes, name) {
			t.Errorf("%s has the code of levels: %v", name, got)
		}
	}
}

// Lines of Lua have fewer than 120 columns.
func TestColumns(t *testing.T) {
	for i, line := range strings.Split(lua.Library().Text, "\n") {
		if len(line) >= 120 {
			t.Errorf("line %d of the library: %d columns, expected fewer than 120: %s", i+1, len(line), line)
		}
	}
}

// The script of an algorithm is complete without other algorithms, and sets the functions of its name. Each algorithm
// is documented.
func TestAlgorithms(t *testing.T) {
	page, err := os.ReadFile("../docs/algorithms.md")
	testkit.Must(t, err)
	forms := map[string]bool{}
	for _, a := range lua.Algorithms {
		if text := lua.Source("peek", a.Name); !strings.Contains(text, "algorithms['"+a.Name+"'] = ") {
			t.Errorf("%s.lua does not set algorithms['%s']", a.Name, a.Name)
		}
		if a.Form == "" || forms[a.Form] || lua.Form(a.Name) != a.Form {
			t.Errorf("%s: form %q", a.Name, a.Form)
		}
		forms[a.Form] = true
		exact := map[bool]string{true: "yes", false: "(no|to [^|]*)"}[a.Promise == lua.EveryUnit]
		for table, row := range map[string]string{
			"Which one":      "\n\\| `" + a.Name + "`[^|]*\\| " + exact + " \\|",
			"State in Redis": "\n\\| `" + a.Name + "` \\| `sc:{p}:" + a.Form + ":<key>` \\|",
		} {
			if !regexp.MustCompile(row).Match(page) {
				t.Errorf("docs/algorithms.md, %q: expected a row as lua/algorithm.go has %s, which matches %s", table,
					a.Name, strings.TrimSpace(row))
			}
		}
	}
	if got := lua.Form("none"); got != "" {
		t.Errorf("form of an unknown algorithm: %q", got)
	}
}

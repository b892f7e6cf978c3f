package lua_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
)

func TestLockHasOneHolder(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx := context.Background()
		key := streamtest.Prefix(t) + ":{0}:relay"
		ask := func(who string, ms int64, want bool) {
			t.Helper()
			held, err := lua.NewServer(c).Lock(ctx, []string{key}, who, ms)
			if err != nil || held[key] != want {
				t.Fatalf("%s asks for %d ms: %v, %v; expected %v", who, ms, held, err, want)
			}
		}
		ask("a", 60_000, true)
		ask("b", 60_000, false)
		ask("a", 60_000, true) // renewed
		ask("b", 0, false)     // a process cannot give back the lock of another
		ask("b", 60_000, false)
		if ttl := c.PTTL(ctx, key).Val(); ttl < 50*time.Second {
			t.Fatalf("the lock ends in %v", ttl)
		}
		ask("a", 0, false)
		ask("b", 60_000, true)
	})
}

// Several locks are taken in one call, also on a server that has lost the library.
func TestLocksTogether(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	s, keys := lua.NewServer(c), []string{"sc:{0}:relay", "sc:{1}:relay", "sc:{2}:relay"}
	testkit.Must(t, c.Set(t.Context(), keys[1], "b", time.Minute).Err())
	for range 2 {
		held, err := s.Lock(t.Context(), keys, "a", 60_000)
		if err != nil || len(held) != 3 || !held[keys[0]] || held[keys[1]] || !held[keys[2]] {
			t.Errorf("%v, %v: want the first and the last", held, err)
		}
		testkit.Must(t, c.FunctionFlush(t.Context()).Err())
	}
	testkit.Must(t, c.Set(t.Context(), keys[2], "c", 0).Err())
	held, err := s.Lock(t.Context(), keys, "a", 0)
	if err != nil || len(held) != 3 || c.Exists(t.Context(), keys...).Val() != 2 {
		t.Errorf("%v, %v: want the first given back alone", held, err)
	}
}

func TestRetireKeepsWhoHoldsEvents(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx := context.Background()
		events := streamtest.Prefix(t) + ":{0}:events"
		if n, err := lua.NewServer(c).Retire(ctx, []string{events}, "workers", "gone", 0); err != nil || n != 0 {
			t.Fatalf("without a stream: %d, %v", n, err)
		}
		testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: events, Values: []any{"key", "k"}}).Err())
		if n, err := lua.NewServer(c).Retire(ctx, []string{events}, "workers", "gone", 0); err != nil || n != 0 {
			t.Fatalf("without a group: %d, %v", n, err)
		}
		testkit.Must(t, c.XGroupCreate(ctx, events, "workers", "0").Err())
		id := ""
		for _, name := range []string{"busy", "idle"} {
			got, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: "workers", Consumer: name, Streams: []string{events, ">"}, Block: -1,
			}).Result()
			if err == nil {
				id = got[0].Messages[0].ID
			}
		}
		for _, name := range []string{"busy", "idle"} {
			if _, err := lua.NewServer(c).Retire(ctx, []string{events}, "workers", name, 0); err != nil {
				t.Fatal(err)
			}
		}
		left, err := c.XInfoConsumers(ctx, events, "workers").Result()
		if err != nil || len(left) != 1 || left[0].Name != "busy" || left[0].Pending != 1 {
			t.Fatalf("left: %+v, %v", left, err)
		}
		if n, err := c.XAck(ctx, events, "workers", id).Result(); err != nil || n != 1 {
			t.Fatalf("the event was dropped with its consumer: %d, %v", n, err)
		}
	})
}

// A fold refuses invalid arguments before it writes anything.
func TestFoldValidatesFirst(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, p := t.Context(), streamtest.Prefix(t)
		var own []string
		for _, part := range []string{"{0}", "{1}"} {
			for _, name := range []string{"events", "levels", "due", "outbox", "ids"} {
				own = append(own, p+":"+part+":"+name)
			}
		}
		log, log2 := p+":{0}:log:k", p+":{1}:log:k"
		type list = []any
		run := func(keys []string, plans int, parts ...list) error {
			args := list{"", "g", 1, 2 + 16384*plans, planOf(10, 100, 10).Text()}
			for _, part := range parts {
				args = append(args, part...)
			}
			return lua.NewServer(c).Call(ctx, "fold", append(slices.Clone(own), keys...), args)
		}
		section := func(keys, plan, partition float64) list { return list{keys + 8192*(plan+4096*partition)} }
		group := list{1, 1, "1-0"}
		first, second, two := section(1, 1, 1), section(1, 1, 2), []string{log, log2}
		if err := run(two, 1, first, group, second, list{1, -1, "1-0"}, group); err != nil {
			t.Fatalf("a fold that is right: %v", err)
		}
		for what, err := range map[string]error{
			"a group cut short":        run(two, 1, first, group, second, list{1}),
			"no section for a key":     run(two, 1, first, group),
			"more groups than keys":    run(two, 1, first, group, second, group, group),
			"a count that is none":     run(two, 1, first, group, second, list{"x", 1, "1-0"}),
			"an ID that is none":       run(two, 1, first, group, second, list{1, 1, "id"}),
			"too much":                 run(two, 1, first, group, second, group, list{"more"}),
			"a partition that is none": run(two, 1, first, group, section(1, 1, 3), group),
			"a partition 0":            run(two, 1, first, group, section(1, 1, 0), group),
			"half a partition":         run(two, 1, first, group, section(1, 1, 1.5), group),
			"half a key":               run(two, 1, first, group, section(0.5, 1, 2), group),
			"a plan that is none":      run(two, 1, first, group, section(1, 2, 2), group),
			"plans cut short":          run(two, 2, first, group, second, group),
			"no keys in a section":     run(two, 1, first, group, section(0, 1, 2), second, group),
			"no group after one":       run(two, 1, first, group, second, list{1, -1, "1-0"}),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
			if n := c.Exists(ctx, append(own, log, log2)...).Val(); n != 0 {
				t.Fatalf("%s: it has written %d keys", what, n)
			}
		}
	})
}

// Scripts refuse invalid arguments before they write anything.
func TestScriptsValidateFirst(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx := context.Background()
		p := streamtest.Prefix(t)
		keys := []string{p + ":{0}:events", p + ":{0}:levels", p + ":{0}:due", p + ":{0}:outbox", p + ":{0}:log:k"}
		text := planOf(10, 100, 10).Text()
		rule, broken := []any{text}, []any{strings.Replace(text, `"limit":10`, `"limit":"ten"`, 1)}
		with := func(head []any, tail ...any) []any {
			return append(append(append([]any{}, head...), rule...),
				tail...)
		}
		one, two := 1+16384, 2+16384 // as in check.lua: how many partitions, and one plan
		for _, x := range []struct {
			op   string
			keys []string
			args []any
		}{
			{"check", keys[1:], with([]any{"", one}, 1.5)},                            // half a unit
			{"check", keys[1:], with([]any{"", one}, "l")},                            // a check cut short
			{"check", keys[1:], with([]any{"", one}, "k", 2, 1)},                      // a key that is none
			{"check", keys[1:], with([]any{"", one}, "+", 1)},                         // a call cut short
			{"check", keys[1:], with([]any{"", two}, 1+8192*(2+4096), 1)},             // a plan that is none
			{"check", keys[1:], append(append([]any{"", one}, broken...), 1)},         // a limit that is none
			{"check", keys[1:], with([]any{"soon", one}, 1)},                          // a clock that is none
			{"refund", keys[1:], with([]any{"", -5})},                                 // less than nothing
			{"reset", keys[1:], []any{"soon"}},                                        // a clock that is none
			{"sweep", keys[1:], []any{""}},                                            // no rule for the key
			{"deadletter", keys[:2], []any{"ack", "g", 10, "1-0", "reason"}},          // a letter cut short
			{"deadletter", keys[:2], []any{"take", "g", 10, "1-0", "reason", "body"}}, // a way that is none
		} {
			if err := lua.NewServer(c).Call(ctx, x.op, x.keys, x.args); err == nil {
				t.Errorf("%s %v: no error", x.op, x.args)
			}
			if n := c.Exists(ctx, keys...).Val(); n != 0 {
				t.Errorf("%s %v: it has written %d keys", x.op, x.args, n)
			}
		}
		if err := lua.NewServer(c).Call(ctx, "check", keys[1:], with([]any{"", one}, 1)); err != nil {
			t.Errorf("a check that is right: %v", err)
		}
	})
}

// Each operation names the files that it includes. With these files, and with each algorithm, it compiles as a script,
// and the script has each file at most once. Only operations that write levels or dead letters have that code.
func TestEachOperationIsAScript(t *testing.T) {
	levels, deadstream := "local function judge(", "local function dead_letter("
	carries := map[string]string{
		"fold": levels, "check": levels, "sweep": levels, "reset": levels, "refund": levels, "override": levels,
		"expire-overrides": levels, "reserve": levels, "settle": levels, "lease-units": levels,
		"deadletter": deadstream, "gap": deadstream,
	}
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
				"local function open_aligned(", levels, deadstream} {
				if n := strings.Count(text, begins); n > 1 {
					t.Errorf("%s with %v has %s %d times", name, algorithms, begins, n)
				}
			}
			if err := c.ScriptLoad(t.Context(), text).Err(); err != nil {
				t.Errorf("%s with %v: %v", name, algorithms, err)
			}
		}
		for _, part := range []string{levels, deadstream} {
			if got := strings.Contains(lua.Source(name), part); got != (carries[name] == part) {
				t.Errorf("%s has %q: %v", name, part, got)
			}
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

// A lease that no relay of streamcounter can have taken is free, because otherwise it would be held forever.
func TestALeaseOfNobody(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx := context.Background()
		key := streamtest.Prefix(t) + ":{0}:relay"
		for what, set := range map[string]func() error{
			"without an end":     func() error { return c.Set(ctx, key, "stranger", 0).Err() },
			"ten years long":     func() error { return c.Set(ctx, key, "stranger", 87_600*time.Hour).Err() },
			"our own, for ever":  func() error { return c.Set(ctx, key, "a", 0).Err() },
			"a list":             func() error { return c.RPush(ctx, key, "stranger").Err() },
			"a hash":             func() error { return c.HSet(ctx, key, "stranger", "x").Err() },
			"a list with an end": func() error { c.RPush(ctx, key, "x"); return c.Expire(ctx, key, time.Minute).Err() },
		} {
			testkit.Must(t, set())
			if _, err := lua.NewServer(c).Lock(ctx, []string{key}, "b", 0); err != nil { // given back without having it
				t.Errorf("%s: giving back: %v", what, err)
			}
			held, err := lua.NewServer(c).Lock(ctx, []string{key}, "a", 3000)
			if err != nil || !held[key] {
				t.Errorf("%s: %v, %v", what, held, err)
			}
			if holder, ttl := c.Get(ctx, key).Val(), c.PTTL(ctx, key).Val(); holder != "a" || ttl <= 0 ||
				ttl > 3*time.Second {
				t.Errorf("%s: held by %q for %v", what, holder, ttl)
			}
			c.Del(ctx, key)
		}
	})
}

// A dead stream that has the greatest ID accepts letters again, and keeps the letters that it had.
func TestADeadStreamThatTakesNoMore(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx := context.Background()
		p := streamtest.Prefix(t)
		events, dead := p+":{0}:events", p+":{0}:dead"
		id := c.XAdd(ctx, &redis.XAddArgs{Stream: events, Values: []any{"key", ""}}).Val()
		c.XGroupCreate(ctx, events, "workers", "0")
		c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "w", Streams: []string{events, ">"},
			Block: -1})
		c.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: []any{"reason", "before"}})
		greatest := "18446744073709551615-18446744073709551615"
		c.XAdd(ctx, &redis.XAddArgs{Stream: dead, ID: greatest, Values: []any{"reason", "foreign"}})
		if c.XAdd(ctx, &redis.XAddArgs{Stream: dead, Values: []any{"x", "y"}}).Err() == nil {
			t.Skip("this server takes more after the greatest ID") // the embedded Redis
		}
		for _, want := range []bool{true, false} { // sent again it writes no second letter
			from := lua.AcknowledgeEvents(events, "workers", p+":{0}:levels")
			written, err := lua.NewServer(c).DeadLetters(ctx, from, dead, 10, []lua.DeadLetter{{ID: id, Reason: "now"}})
			if err != nil || written[0] != want {
				t.Fatalf("written %v, %v; want %v", written, err, want)
			}
		}
		letters := c.XRange(ctx, dead, "-", "+").Val()
		if len(letters) != 2 || letters[0].Values["reason"] != "before" || letters[1].Values["reason"] != "now" {
			t.Fatalf("letters: %v", letters)
		}
	})
}

// Events that were trimmed unread are found while the stream goes on, and once. What Redis says about the number of
// events that the group has read does not matter: after a failover it is too low.
func TestGaps(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t)) // the embedded Redis does not have the numbers
	ctx, prefix := t.Context(), streamtest.Prefix(t)
	part := lua.GapPartition{Events: prefix + ":{0}:events", Dead: prefix + ":{0}:dead", Levels: prefix + ":{0}:levels"}
	server := lua.NewServer(c)
	add := func(n int) {
		t.Helper()
		for range n {
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: part.Events, Values: []any{"key", "k"}}).Err())
		}
	}
	last := ""
	read := func(n int64) {
		t.Helper()
		got, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "a", Count: n,
			Streams: []string{part.Events, ">"}}).Result()
		testkit.Must(t, err)
		var list []lua.DeadLetter
		for _, m := range got[0].Messages {
			last = m.ID
			list = append(list, lua.DeadLetter{ID: m.ID})
		}
		_, err = server.DeadLetters(ctx, lua.AcknowledgeEvents(part.Events, "workers", part.Levels), part.Dead, 0, list)
		testkit.Must(t, err)
	}
	gap := func(what string, want int64) {
		t.Helper()
		for _, want := range []int64{want, 0} { // each is found once
			if n, err := server.Gap(ctx, []lua.GapPartition{part}, "workers", 10); err != nil || n[0] != want {
				t.Errorf("%s: %d missing, %v, want %d", what, n, err, want)
			}
		}
	}
	begin := func() { testkit.Must(t, c.XGroupCreateMkStream(ctx, part.Events, "workers", "0").Err()) }
	begin()
	add(10)
	testkit.Must(t, c.XTrimMaxLen(ctx, part.Events, 9).Err())
	gap("nobody has read yet", 1)
	read(7)
	gap("2 are unread", 0)
	testkit.Must(t, c.XTrimMaxLen(ctx, part.Events, 1).Err())
	add(5)
	read(3)
	gap("the stream went on after a trim", 1)
	testkit.Must(t, c.Do(ctx, "XGROUP", "SETID", part.Events, "workers", last, "ENTRIESREAD", "3").Err())
	gap("the server's number is wrong", 0)
	add(1500)
	gap("too many are unread", 0)
	testkit.Must(t, c.XTrimMaxLen(ctx, part.Events, 1400).Err())
	gap("all are unread", 103)
	read(2000)
	gap("all are read", 0)
	testkit.Must(t, c.Del(ctx, part.Events).Err())
	begin()
	add(3)
	gap("the stream was made again", 0)
	testkit.Must(t, c.XTrimMaxLen(ctx, part.Events, 1).Err())
	gap("and trimmed", 2)
	if n := c.XLen(ctx, part.Dead).Val(); n != 4 {
		t.Errorf("%d dead letters, want one per loss", n)
	}
}

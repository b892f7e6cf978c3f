package lua_test

import (
	"context"
	"fmt"
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

// A lock has one holder, and several are taken in one call. A lock that no relay of streamcounter can have taken is
// free, because otherwise it would be held forever.
func TestLocks(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx, prefix := t.Context(), streamtest.Prefix(t)
		key, other := prefix+":{0}:relay", prefix+":{1}:relay"
		ask := func(who string, ms int64, want, wantOther bool) {
			t.Helper()
			r := lua.NewCaller(c).Call(ctx, "lock", nil, []string{key, other}, who, ms)
			if held := r.Flags(2); r.End() != nil || held[0] != want || held[1] != wantOther {
				t.Fatalf("%s asks for %d ms: %v, %v; expected %v and %v", who, ms, held, r.End(), want, wantOther)
			}
		}
		testkit.Must(t, c.Set(ctx, other, "b", time.Minute).Err())
		ask("a", 60_000, true, false)
		ask("b", 60_000, false, true)
		ask("a", 60_000, true, false) // renewed
		ask("b", 0, false, false)     // a process cannot give back the lock of another
		ask("c", 60_000, false, true)
		if ttl := c.PTTL(ctx, key).Val(); ttl < 50*time.Second {
			t.Fatalf("the lock ends in %v", ttl)
		}
		ask("a", 0, false, false)
		ask("b", 60_000, true, false)
		for what, set := range map[string]func() error{
			"without an end":     func() error { return c.Set(ctx, key, "stranger", 0).Err() },
			"ten years long":     func() error { return c.Set(ctx, key, "stranger", 87_600*time.Hour).Err() },
			"our own, for ever":  func() error { return c.Set(ctx, key, "a", 0).Err() },
			"a list":             func() error { return c.RPush(ctx, key, "stranger").Err() },
			"a hash":             func() error { return c.HSet(ctx, key, "stranger", "x").Err() },
			"a list with an end": func() error { c.RPush(ctx, key, "x"); return c.Expire(ctx, key, time.Minute).Err() },
		} {
			c.Del(ctx, key)
			testkit.Must(t, set())
			ask("b", 0, false, false) // given back without having it
			if c.Exists(ctx, key).Val() != 1 {
				t.Errorf("%s: it is gone", what)
			}
			ask("a", 20_000, true, false)
			if holder, ttl := c.Get(ctx, key).Val(), c.PTTL(ctx, key).Val(); holder != "a" || ttl <= 0 ||
				ttl > 20*time.Second {
				t.Errorf("%s: held by %q for %v", what, holder, ttl)
			}
		}
	})
}

func TestRetireKeepsWhoHoldsEvents(t *testing.T) {
	streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
		ctx := context.Background()
		events := streamtest.Prefix(t) + ":{0}:events"
		retire := func(name string) (int64, error) {
			r := lua.NewCaller(c).Call(ctx, "retire", nil, []string{events}, "workers", name, 0)
			return r.Integer(), r.End()
		}
		if n, err := retire("gone"); err != nil || n != 0 {
			t.Fatalf("without a stream: %d, %v", n, err)
		}
		testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: events, Values: []any{"key", "k"}}).Err())
		if n, err := retire("gone"); err != nil || n != 0 {
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
			if _, err := retire(name); err != nil {
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
			r := lua.NewCaller(c).Call(ctx, "deadletter", nil, []string{events, dead, p + ":{0}:levels"}, "workers", 10,
				id, "now", "", false)
			if written := r.Flags(1); r.End() != nil || written[0] != want {
				t.Fatalf("written %v, %v; want %v", written, r.End(), want)
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
	events, dead, levels := prefix+":{0}:events", prefix+":{0}:dead", prefix+":{0}:levels"
	server := lua.NewCaller(c)
	add := func(n int) {
		t.Helper()
		for range n {
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: events, Values: []any{"key", "k"}}).Err())
		}
	}
	last := ""
	read := func(n int64) {
		t.Helper()
		got, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "a", Count: n,
			Streams: []string{events, ">"}}).Result()
		testkit.Must(t, err)
		letters := []any{"workers", 0}
		for _, m := range got[0].Messages {
			last = m.ID
			letters = append(letters, m.ID, "", "", false)
		}
		testkit.Must(t, server.Call(ctx, "deadletter", nil, []string{events, dead, levels}, letters...).Err())
	}
	gap := func(what string, want int64) {
		t.Helper()
		for _, want := range []int64{want, 0} { // each is found once
			r := server.Call(ctx, "gap", nil, []string{events, dead, levels}, "workers", 10)
			if n := r.Integer(); r.End() != nil || n != want {
				t.Errorf("%s: %d missing, %v, want %d", what, n, r.End(), want)
			}
		}
		if want == 0 {
			return
		}
		first := "none"
		if left := c.XRangeN(ctx, events, "-", "+", 1).Val(); len(left) > 0 {
			first = left[0].ID
		}
		text := fmt.Sprintf("%d events were trimmed before they were counted; last one read: %s, first one left: %s",
			want, c.XInfoGroups(ctx, events).Val()[0].LastDeliveredID, first)
		if got := c.XRevRangeN(ctx, dead, "+", "-", 1).Val()[0].Values["reason"]; got != text {
			t.Errorf("%s: %q, want %q", what, got, text)
		}
	}
	begin := func() { testkit.Must(t, c.XGroupCreateMkStream(ctx, events, "workers", "0").Err()) }
	begin()
	add(10)
	testkit.Must(t, c.XTrimMaxLen(ctx, events, 9).Err())
	gap("nobody has read yet", 1)
	read(7)
	gap("2 are unread", 0)
	testkit.Must(t, c.XTrimMaxLen(ctx, events, 1).Err())
	add(5)
	read(3)
	gap("the stream went on after a trim", 1)
	testkit.Must(t, c.Do(ctx, "XGROUP", "SETID", events, "workers", last, "ENTRIESREAD", "3").Err())
	gap("the server's number is wrong", 0)
	add(1500)
	gap("too many are unread", 0)
	testkit.Must(t, c.XTrimMaxLen(ctx, events, 1400).Err())
	gap("all are unread", 103)
	read(2000)
	gap("all are read", 0)
	testkit.Must(t, c.Del(ctx, events).Err())
	begin()
	add(3)
	gap("the stream was made again", 0)
	testkit.Must(t, c.XTrimMaxLen(ctx, events, 1).Err())
	gap("and trimmed", 2)
	testkit.Must(t, c.XTrimMaxLen(ctx, events, 0).Err())
	gap("none is left", 1)
	if n := c.XLen(ctx, dead).Val(); n != 5 {
		t.Errorf("%d dead letters, want one per loss", n)
	}
}

package lua_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

var partition = []string{"sc:{0}:levels", "sc:{0}:due", "sc:{0}:outbox"}

const onePlan = 1 + 16384 // one partition and one plan, as in check.lua

// failure runs an operation with the arguments of a test and returns its error.
func failure(ctx context.Context, s *lua.Caller, op string, keys []string, args ...any) error {
	all := &lua.Plan{}
	for _, name := range lua.AlgorithmNames() {
		all.Meters = append(all.Meters, lua.Meter{Algorithm: name})
	}
	return s.Call(ctx, op, []*lua.Plan{all}, keys, args...).Err()
}

// checked charges one unit of a key in partition 0 of "sc", whose limit is 10^9, and returns how many units are used.
func checked(ctx context.Context, s *lua.Caller, key string) (used int64, err error) {
	return checkedOf(ctx, s, key, 1_000_000_000)
}

func checkedOf(ctx context.Context, s *lua.Caller, key string, limit int64) (used int64, err error) {
	plan := planOf(limit, 100, 1_000_000_000)
	keys := append(partition[:3:3], "sc:{0}:log:"+key)
	r := s.Call(ctx, "check", []*lua.Plan{plan}, keys, "", onePlan, plan.Text(), 1)
	_, allowed, state := r.Integer(), r.Integer(), r.AnswerWithShadows(plan)
	if err = r.End(); err == nil && allowed == 0 {
		err = errDenied
	}
	return state.Windows[0].Used, err
}

// planOf returns a plan of one window of a minute, with these levels.
func planOf(limit int64, steps ...int64) *lua.Plan {
	return &lua.Plan{
		Meters: []lua.Meter{{Algorithm: "sliding-log", Setting: 7500, SpanMs: 60_000, Windows: []int{1}}},
		Rules: []lua.Rule{{Name: "api", Algorithm: "sliding-log", HoldMs: 1000,
			Windows: []lua.Window{{Ms: 60_000, Limit: limit, Steps: steps}}}},
	}
}

var errDenied = errors.New("denied")

// load makes checks with some callers while a failure is caused, and compares the acknowledged units with the counted
// units.
func load(t *testing.T, s *lua.Caller, trouble func(), rounds int) {
	t.Helper()
	const callers, each = 8, 200
	var done atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				if _, err := checked(t.Context(), s, "k"); err != nil {
					t.Errorf("a check: %v", err)
					return
				}
				done.Add(1)
			}
		})
	}
	for range rounds {
		trouble()
	}
	all.Wait()
	if used, err := checked(t.Context(), s, "k"); err != nil || used != done.Load()+1 {
		t.Errorf("%d units are used, %v; %d checks were acknowledged", used, err, done.Load()+1)
	}
}

// functionsOf reports whether a server has executed a function, and a script.
func functionsOf(t *testing.T, c *redis.Client) (functions, scripts bool) {
	t.Helper()
	stats := c.Info(t.Context(), "commandstats").Val()
	return strings.Contains(stats, "cmdstat_fcall:"), strings.Contains(stats, "cmdstat_eval")
}

// A server that has lost the library gets it again, whatever happens meanwhile, and each check counts once.
func TestALibraryThatIsGoneIsLoadedAgain(t *testing.T) {
	own := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, own.URL())
	s := lua.NewCaller(c)
	load(t, s, func() { testkit.Must(t, c.Do(t.Context(), "FUNCTION", "FLUSH", "SYNC").Err()) }, 300)
	if functions, _ := functionsOf(t, c); !functions {
		t.Error("no function was called")
	}
}

// A server can have two versions at the same time: the names of a library and of its functions depend on its text.
func TestTwoVersionsSideBySide(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	l := lua.Library()
	other := strings.ReplaceAll(l.Text, l.Name, "streamcounter_0123456789ab")
	testkit.Must(t, c.FunctionLoad(t.Context(), other).Err())
	load(t, lua.NewCaller(c), func() {}, 0)
	if names := libraries(t, c); names != "streamcounter_0123456789ab "+l.Name &&
		names != l.Name+" streamcounter_0123456789ab" {
		t.Errorf("libraries: %s", names)
	}
	if _, scripts := functionsOf(t, c); scripts {
		t.Error("a script was called")
	}
}

func libraries(t *testing.T, c *redis.Client) string {
	t.Helper()
	list, err := c.FunctionList(t.Context(), redis.FunctionListQuery{}).Result()
	testkit.Must(t, err)
	var names []string
	for _, l := range list {
		names = append(names, l.Name)
	}
	return strings.Join(names, " ")
}

// withUser returns clients of a server: one that may do everything, and one of a user with all rights but some.
func withUser(t *testing.T, without ...any) (admin, user *redis.Client) {
	t.Helper()
	own := streamtest.OwnRedis(t)
	admin = streamtest.Connect(t, own.URL())
	rights := append([]any{"ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all"}, without...)
	testkit.Must(t, admin.Do(t.Context(), rights...).Err())
	return admin, streamtest.Connect(t, strings.Replace(own.URL(), "redis://", "redis://u:p@", 1))
}

// If functions cannot be used, the same text runs as a script: if the user may not call or load them, if another
// library has the same name, or if memory is full.
func TestWithoutFunctions(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, admin *redis.Client){
		"may not call": func(t *testing.T, admin *redis.Client) {
			testkit.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", "u", "-fcall", "-fcall_ro").Err())
		},
		"may not load": func(t *testing.T, admin *redis.Client) {
			testkit.Must(t, admin.Do(t.Context(), "ACL", "SETUSER", "u", "-function|load").Err())
		},
		"another library has the name": func(t *testing.T, admin *redis.Client) {
			testkit.Must(t, admin.FunctionLoad(t.Context(), "#!lua name="+lua.Library().Name+
				"\nredis.register_function('theirs', function() return 1 end)").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			admin, c := withUser(t)
			spoil(t, admin)
			load(t, lua.NewCaller(c), func() {}, 0)
			if _, scripts := functionsOf(t, admin); !scripts {
				t.Error("no script was called")
			}
			stats := admin.Info(t.Context(), "commandstats").Val()
			if loads := regexp.MustCompile(`function\|load:calls=(\d\d\d)`).FindString(stats); loads != "" {
				t.Errorf("the library was sent at nearly each call: %s…", loads)
			}
		})
	}
}

// A call that Redis ends midway, because the user may not run a command of it, may have written, so it is not sent
// again.
func TestACallThatEndsMidwayIsNotRepeated(t *testing.T) {
	admin, c := withUser(t, "-pexpire")
	_, err := checked(t.Context(), lua.NewCaller(c), "k")
	if err == nil {
		t.Error("a check without the right to PEXPIRE did not fail")
	}
	if n := admin.XLen(t.Context(), "sc:{0}:log:k").Val(); n != 1 {
		t.Errorf("the check has written %d entries, want 1 (%v)", n, err)
	}
}

// If memory is full, a check is refused as a whole. A denied check is answered anyway, because a look is enough for it.
// Operations that free memory still run.
func TestFullMemory(t *testing.T) {
	for name, functions := range map[string]bool{"functions": true, "scripts": false} {
		t.Run(name, func(t *testing.T) {
			own := streamtest.OwnRedis(t)
			c := streamtest.Connect(t, own.URL())
			s := lua.NewCaller(c)
			if functions {
				_, err := checked(t.Context(), s, "k")
				testkit.Must(t, err)
			}
			for range 3 {
				_, err := checkedOf(t.Context(), s, "full", 3)
				testkit.Must(t, err)
			}
			if !functions {
				testkit.Must(t, c.Do(t.Context(), "FUNCTION", "FLUSH", "SYNC").Err())
			}
			testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
			_, err := checked(t.Context(), s, "k")
			if err == nil || !strings.HasPrefix(err.Error(), "check script: OOM") {
				t.Errorf("a check that would write: %v", err)
			}
			if used, err := checkedOf(t.Context(), s, "full", 3); used != 3 || !errors.Is(err, errDenied) {
				t.Errorf("a check that is denied: %d, %v", used, err)
			}
			plan := planOf(3)
			r := s.Call(t.Context(), "reset", []*lua.Plan{plan}, append(partition[:3:3], "sc:{0}:holds:full",
				"sc:{0}:log:full"), "", plan.Text())
			if had := r.Integer(); r.Err() != nil || had != 1 {
				t.Errorf("a reset: %v, %v", had, r.Err())
			}
		})
	}
}

// Each master of a Cluster loses the library again and again. Calls still succeed, and count once.
func TestLibraryOnACluster(t *testing.T) {
	cluster := streamtest.Cluster(t)
	c := stream.NewCluster(&redis.ClusterOptions{Addrs: cluster.Addrs()[:3]})
	t.Cleanup(func() { _ = c.Close() })
	load(t, lua.NewCaller(c), func() {
		testkit.Must(t, c.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			return node.Do(ctx, "FUNCTION", "FLUSH", "SYNC").Err()
		}))
	}, 100)
}

// A replica that takes over has the library. A master that gets a slot, an old one or one that was just added, gets the
// library too. So checks still run as functions.
func TestLibraryThroughAFailoverAndAMove(t *testing.T) {
	cluster := streamtest.Cluster(t)
	c := stream.NewCluster(&redis.ClusterOptions{Addrs: cluster.Addrs()})
	t.Cleanup(func() { _ = c.Close() })
	s, slot := lua.NewCaller(c), cluster.Slot("sc:{0}:levels")
	again := func(what string) {
		t.Helper()
		// For a moment the client may know only the old master. Then calls run by EVALSHA for a second.
		streamtest.Eventually(t, "checks are answered by functions after "+what, func() (bool, string) {
			_, err := checked(t.Context(), s, "k")
			if err != nil {
				return false, err.Error()
			}
			master, err := c.MasterForKey(t.Context(), "sc:{0}:levels")
			testkit.Must(t, err)
			names := libraries(t, master)
			return names == lua.Library().Name, "libraries: " + names
		})
	}
	again("the start")
	cluster.Migrate(slot, cluster.OtherMaster(slot), func(int) {})
	again("a move")
	cluster.AwaitNewMaster(slot, cluster.KillMasterOf(slot))
	again("a failover")
	added := cluster.AddMaster()
	cluster.Migrate(slot, added, nil)
	again("a move to a new master")
	if at := cluster.MasterOf(slot); at != added {
		t.Errorf("the slot is at %s, not at %s", at, added)
	}
}

// An operator loads the library, so that no process needs the permission to do so.
func TestLoad(t *testing.T) {
	admin, c := withUser(t, "-function|load")
	for range 2 {
		testkit.Must(t, lua.NewCaller(admin).Load(t.Context()))
	}
	_, err := checked(t.Context(), lua.NewCaller(c), "k")
	testkit.Must(t, err)
	if functions, scripts := functionsOf(t, admin); !functions || scripts {
		t.Errorf("functions: %v, scripts: %v", functions, scripts)
	}
	if err := lua.NewCaller(c).Load(t.Context()); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("loading without the right to: %v", err)
	}
}

// A failed call leaves nothing behind that changes the next call: after each kind of failure, a check and the state of
// its key are as on a server that has had no failure.
func TestAFailedCallLeavesNothingBehind(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	ctx, s := t.Context(), lua.NewCaller(c)
	rule := []any{planOf(10, 80, 8, 100, 10).Text()}
	with := func(head []any, tail ...any) []any { return append(append(append([]any{}, head...), rule...), tail...) }
	// A key with a refund and a mark of reservations, a corrupt one, one of another type, one of an old period.
	testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: "sc:{0}:log:marked", Values: []any{"count", 1, "total", 9,
		"refunded_total", 3, "until", 99999999999999, "window", 60000, "reserved", 1}}).Err())
	testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: "sc:{0}:log:corrupt", Values: []any{"a", "b"}}).Err())
	testkit.Must(t, c.Set(ctx, "sc:{0}:log:text", "x", 0).Err())
	testkit.Must(t, c.Set(ctx, "sc:{1}:levels", "x", 0).Err())
	calendar := []any{(&lua.Plan{Meters: []lua.Meter{{Algorithm: lua.Calendar, SpanMs: 1, Windows: []int{1}}},
		Rules: []lua.Rule{{Name: "api", Algorithm: "month", Windows: []lua.Window{{Ms: 1, Limit: 10,
			Steps: []int64{80, 8, 100, 10}, ID: 101, FromMs: 5, NextMs: 1}}}}}).Text()}
	failures := []struct {
		op   string
		keys []string
		args []any
	}{
		{"check", append(partition[:3:3], "sc:{0}:log:marked"), with([]any{"", onePlan}, "x")},
		{"check", append(partition[:3:3], "sc:{0}:log:corrupt"), with([]any{"", onePlan}, "k", 7, 1)},
		{"check", []string{"sc:{1}:levels", "sc:{0}:due", "sc:{0}:outbox", "sc:{0}:log:text"},
			with([]any{"5", onePlan}, 9)},
		{"check", append(partition[:3:3], "sc:{0}:calendar:k"), append(append([]any{"", onePlan}, calendar...), 1)},
		{"refund", append(partition[:3:3], "sc:{0}:log:marked"), with([]any{"", "x"})},
		{"sweep", append(partition[:3:3], "sc:{0}:log:corrupt"), []any{"", 1, "no rule"}},
		{"fold", []string{"sc:{0}:log:text", "sc:{0}:levels", "sc:{0}:due", "sc:{0}:outbox", "sc:{0}:ids",
			"sc:{0}:log:marked"}, with([]any{"", "g", 1, onePlan}, 1, 1, "1-1",
			"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01 ")},
		{"none", partition, []any{""}},
	}
	for round, f := range failures {
		key := "user" + string(rune('a'+round))
		if _, err := checkedOf(ctx, s, key, 10); err != nil {
			t.Fatal(err)
		}
		if err := failure(ctx, s, f.op, f.keys, f.args...); err == nil {
			t.Errorf("%d: %s did not fail", round, f.op)
		}
		if used, err := checkedOf(ctx, s, key, 10); err != nil || used != 2 {
			t.Errorf("after %d, %s: %d units are used, expected 2; %v", round, f.op, used, err)
		}
		entries := c.XRange(ctx, "sc:{0}:log:"+key, "-", "+").Val()
		if last := entries[len(entries)-1].Values; len(last) != 2 || last["count"] != "1" || last["total"] != "2" {
			t.Errorf("after %d, %s: the entry is %v", round, f.op, last)
		}
		if ttl := c.PTTL(ctx, "sc:{0}:log:"+key).Val(); ttl.Milliseconds() > 60_000+7500 {
			t.Errorf("after %d, %s: the log lives for %v", round, f.op, ttl)
		}
	}
	// Data of a key that a failed call has read is not used after the key was removed.
	testkit.Must(t, failure(ctx, s, "check", append(partition[:3:3], "sc:{0}:log:marked"),
		with([]any{"", onePlan}, 0)...))
	testkit.Must(t, c.Del(ctx, "sc:{0}:log:marked").Err())
	if _, err := checkedOf(ctx, s, "marked", 10); err != nil {
		t.Error(err)
	}
	if entry := c.XRange(ctx, "sc:{0}:log:marked", "-", "+").Val()[0].Values; len(entry) != 2 {
		t.Errorf("the first entry of a new log is %v", entry)
	}
	// A call also does not use the plans of the call before it.
	key, plan := "sc:{0}:log:marked", rule[0]
	testkit.Must(t, failure(ctx, s, "check", append(partition[:3:3], key), "", 1+2*16384, plan, plan,
		1+8192*(2+4096), 1))
	if err := failure(ctx, s, "check", append(slices.Concat(partition, partition), key), "", 2+16384, plan,
		1+8192*(2+4096), 1); err == nil {
		t.Error("a call has found a plan that it did not have")
	}
	if functions, scripts := functionsOf(t, c); !functions || scripts {
		t.Errorf("functions: %v, scripts: %v", functions, scripts)
	}
}

// The library keeps the states of some keys for the next calls, but not those of the largest call so far: its memory
// is outside of maxmemory, and the garbage collector scans it in each call.
func TestALargeCallLeavesLittleMemory(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	ctx, s := t.Context(), lua.NewCaller(c)
	used := func() int64 {
		for range 20_000 { // the collector works in steps, when calls allocate
			_, err := checked(ctx, s, "small")
			testkit.Must(t, err)
		}
		info := regexp.MustCompile(`used_memory_vm_functions:(\d+)`).FindStringSubmatch(c.Info(ctx, "memory").Val())
		n, err := strconv.ParseInt(info[1], 10, 64)
		testkit.Must(t, err)
		return n
	}
	before := used()
	testkit.Must(t, c.XGroupCreateMkStream(ctx, "sc:{0}:events", "g", "0").Err())
	plan := planOf(100, 100, 100)
	for _, n := range []int{8000, 1} { // a small call drops the lists of a large one
		logs, events, checks := make([]string, n), []any(nil), []any(nil)
		for i := range logs {
			logs[i] = fmt.Sprint("sc:{0}:log:", i)
			events, checks = append(events, 1, 1, fmt.Sprintf("1-%d", i+1)), append(checks, 1)
		}
		testkit.Must(t, failure(ctx, s, "fold", append([]string{"sc:{0}:events", partition[0], partition[1],
			partition[2], "sc:{0}:ids"}, logs...), append([]any{"", "g", 1000, onePlan, plan.Text()}, events...)...))
		testkit.Must(t, failure(ctx, s, "check", append(partition[:3:3], logs...),
			append([]any{"", onePlan, plan.Text()}, checks...)...))
	}
	if after := used(); after > before+4<<20 {
		t.Errorf("the library takes %d KB more after a call of 8,000 keys", (after-before)>>10)
	}
}

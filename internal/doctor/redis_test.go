package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/deploy"
	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// With the configuration of deploy/ there is nothing to fix.
func TestShippedRedis(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t, shipped(t)...).URL())
	testkit.Must(t, stream.CheckMeta(t.Context(), c, keysOf(t, 16)))
	golden(t, "shipped", look(t, c)) // the worst is a note
}

func TestEviction(t *testing.T) {
	own := streamtest.OwnRedis(t, append(shipped(t), "--maxmemory-policy", "volatile-lru", "--maxmemory", "100mb")...)
	c := streamtest.Connect(t, own.URL())
	testkit.Must(t, stream.CheckMeta(t.Context(), c, keysOf(t, 16)))
	golden(t, "volatile", look(t, c))
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	expect(t, look(t, c), "redis.maxmemory-policy", doctor.Warning, "without effect",
		"CONFIG SET maxmemory-policy noeviction")
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lfu").Err())
	expect(t, look(t, c), "redis.maxmemory-policy", doctor.Warning, "allkeys-lfu")
}

// Each harmful setting is reported with its fix, and the fix works.
func TestSettings(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t, shipped(t)...).URL())
	for _, x := range []struct {
		setting, bad, good string
		check              string
		severity           doctor.Severity
		fix                string
	}{
		{"stream-node-max-bytes", "0", "512", "redis.stream-node-max-bytes", doctor.Warning,
			"CONFIG SET stream-node-max-bytes 512"},
		{"stream-node-max-entries", "0", "100", "redis.stream-node-max-entries", doctor.Note,
			"CONFIG SET stream-node-max-entries 100"},
		{"stream-node-max-entries", "2", "100", "redis.stream-node-max-entries", doctor.Note,
			"CONFIG SET stream-node-max-entries 100"},
		{"lazyfree-lazy-expire", "no", "yes", "redis.lazyfree-lazy-expire", doctor.Note,
			"CONFIG SET lazyfree-lazy-expire yes"},
		{"min-replicas-to-write", "1", "0", "redis.replicas", doctor.Problem, "CONFIG SET min-replicas-to-write 0"},
		{"appendfsync", "no", "everysec", "redis.persistence", doctor.Warning, "CONFIG SET appendfsync everysec"},
		{"appendonly", "no", "yes", "redis.persistence", doctor.Warning, "CONFIG SET appendonly yes"},
		{"maxmemory", "1mb", "100mb", "redis.memory", doctor.Problem, "maxmemory"},
	} {
		testkit.Must(t, c.ConfigSet(t.Context(), x.setting, x.bad).Err())
		expect(t, look(t, c), x.check, x.severity, x.fix)
		testkit.Must(t, c.ConfigSet(t.Context(), x.setting, x.good).Err())
		expect(t, look(t, c), x.check, doctor.OK)
	}
}

func TestReplica(t *testing.T) {
	master, replica := streamtest.OwnRedis(t), streamtest.OwnRedis(t)
	m, r := streamtest.Connect(t, master.URL()), streamtest.Connect(t, replica.URL())
	host, port, _ := strings.Cut(master.Addr(), ":")
	testkit.Must(t, r.ReplicaOf(t.Context(), host, port).Err())
	streamtest.Eventually(t, "the replica is connected", func() (bool, string) {
		info := m.Info(t.Context(), "replication").Val()
		return strings.Contains(info, "connected_slaves:1"), info
	})
	expect(t, look(t, r), "redis.replicas", doctor.Problem, "replica of "+host, "--redis")
	expect(t, look(t, m), "redis.replicas", doctor.Note, "1 replica, min-replicas-to-write 0",
		"CONFIG SET min-replicas-to-write 1")
	testkit.Must(t, m.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	expect(t, look(t, m), "redis.replicas", doctor.OK)
}

func TestWrongPartitions(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t, shipped(t)...).URL())
	testkit.Must(t, stream.CheckMeta(t.Context(), c, keysOf(t, 8)))
	golden(t, "partitions", look(t, c))
	testkit.Must(t, c.HSet(t.Context(), "sc:meta", "version", "2").Err())
	expect(t, look(t, c), "redis.meta", doctor.Problem, `version "2"`, "has 1")
}

// The embedded Redis reports none of its settings: that is not an error.
func TestEmbedded(t *testing.T) {
	c := streamtest.Connect(t, "redis://"+streamtest.EmbeddedRedis(t).Addr())
	testkit.Must(t, stream.CheckMeta(t.Context(), c, keysOf(t, 16)))
	golden(t, "embedded", look(t, c))
}

// A server without functions runs scripts: doctor says so, and there is nothing to prune.
func TestNoFunctions(t *testing.T) {
	c := streamtest.Connect(t, "redis://"+streamtest.ScriptsRedis(t).Addr())
	expect(t, look(t, c), "redis.functions", doctor.Note, "called by EVALSHA")
	if deleted, err := doctor.Prune(t.Context(), c, keysOf(t, 16)); err != nil || len(deleted) > 0 {
		t.Errorf("pruned %v, %v", deleted, err)
	}
}

// Clocks that differ, seen from a machine whose clock the test sets.
func TestClock(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	for _, x := range []struct {
		off      time.Duration
		severity doctor.Severity
		says     string
	}{
		{0, doctor.OK, "within a second"}, {2 * time.Minute, doctor.Warning, "2m0s behind"},
		{-2 * time.Minute, doctor.Warning, "2m0s ahead"}, {9 * time.Minute, doctor.Problem, "9m0s behind"},
	} {
		now := func() time.Time { return time.Now().Add(x.off) }
		expect(t, lookAt(t, c, now), "redis.clock", x.severity, x.says)
	}
}

// Waiting and lost events are reported with the severity of their age.
func TestState(t *testing.T) {
	ctx, k := t.Context(), keysOf(t, 16)
	for _, x := range []struct {
		age             time.Duration
		waiting, unsent doctor.Severity
	}{
		{time.Second, doctor.OK, doctor.OK}, {2 * time.Minute, doctor.Warning, doctor.Warning},
		{6 * time.Minute, doctor.Problem, doctor.Problem},
	} {
		c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
		testkit.Must(t, stream.CheckMeta(ctx, c, k))
		clean := look(t, c)
		for _, check := range []string{"state.unread", "state.pending", "state.outbox", "state.dead"} {
			expect(t, clean, check, doctor.OK)
		}
		id := fmt.Sprintf("%d-0", c.Time(ctx).Val().Add(-x.age).UnixMilli())
		add := func(key string) {
			t.Helper()
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: key, ID: id, Values: []any{"key", "k"}}).Err())
		}
		add(k.Events(3)) // read and not counted
		testkit.Must(t, c.XGroupCreate(ctx, k.Events(3), eventlog.Group, "0").Err())
		testkit.Must(t, c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: eventlog.Group, Consumer: "c",
			Streams: []string{k.Events(3), ">"}}).Err())
		add(k.Events(5)) // no worker has ever read there
		add(k.Outbox(7))
		findings := look(t, c)
		expect(t, findings, "state.unread", x.waiting, "1 partition", "partition 5")
		expect(t, findings, "state.pending", x.waiting, "1 event read", "partition 3")
		expect(t, findings, "state.outbox", x.unsent, "1 transition ", "partition 7")
		expect(t, findings, "state.dead", doctor.OK)
		add(k.Dead(9))
		add(k.Events(6)) // one is read, one is not
		testkit.Must(t, c.XGroupCreate(ctx, k.Events(6), eventlog.Group, id).Err())
		for _, p := range []int{4, 6} { // younger, before and after the oldest
			testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: k.Events(p), Values: []any{"key", "k"}}).Err())
		}
		findings = look(t, c)
		expect(t, findings, "state.dead", doctor.Warning, "1 dead", "sc:{9}:dead")
		expect(t, findings, "state.unread", x.waiting, "3 partitions", "partition 5")
		id = "9999999999999-0"
		add(k.Events(7))
		expect(t, look(t, c), "state.future", doctor.Problem, "sc:{7}:events")
	}
}

// A key of the wrong type is named, with its fix, and hides nothing about other partitions.
func TestWrongTypes(t *testing.T) {
	ctx, k := t.Context(), keysOf(t, 16)
	secured := streamtest.NewSecuredRedis(t)
	operator, c := streamtest.Connect(t, secured.As("operator")), streamtest.Connect(t, secured.As("doctor"))
	testkit.Must(t, stream.CheckMeta(ctx, operator, k))
	testkit.Must(t, operator.XAdd(ctx, &redis.XAddArgs{Stream: k.Events(5), Values: []any{"key", "k"}}).Err())
	for _, key := range []string{k.Events(4), k.Levels(4), k.Due(4), k.Outbox(4), k.IDs(4), k.Dead(4), k.Meta(),
		k.Reservations(4), k.Overrides(4), k.Audit(4), k.Processes(), k.Libraries()} {
		kept := operator.Dump(ctx, key).Val()
		testkit.Must(t, operator.Set(ctx, key, "x", 0).Err())
		findings := look(t, c)
		check, severity := "state.types", doctor.Problem
		if key == k.Meta() {
			check = "redis.meta"
		}
		expect(t, findings, check, severity, key+" has the wrong type", "RENAME "+key)
		expect(t, findings, "state.unread", doctor.OK, "unread events in 1 partition, ", "partition 5")
		if _, err := doctor.Prune(ctx, operator, k); key == k.Libraries() && (err == nil ||
			!strings.Contains(err.Error(), "RENAME "+key)) {
			t.Errorf("--prune says %v", err)
		}
		testkit.Must(t, operator.Del(ctx, key).Err())
		if kept != "" {
			testkit.Must(t, operator.Restore(ctx, key, 0, kept).Err())
		}
		expect(t, look(t, c), "redis.meta", doctor.OK)
	}
	if list := secured.Refused(t); len(list) > 0 {
		t.Errorf("doctor was refused %v", list)
	}
	testkit.Must(t, operator.Do(ctx, "ACL", "SETUSER", "doctor", "-hlen").Err()) // a file of an older version
	findings := look(t, c)
	expect(t, findings, "state.types", doctor.Note, "not checked", "+hlen")
	expect(t, findings, "state.unread", doctor.OK, "partition 5")
}

// An event that is too large to be read hides nothing, in its partition or another.
func TestALargeEvent(t *testing.T) {
	ctx, k, server := t.Context(), keysOf(t, 16), streamtest.OwnRedis(t)
	c, tight := streamtest.Connect(t, server.URL()), streamtest.Connect(t, server.URL(), streamtest.Tight)
	testkit.Must(t, stream.CheckMeta(ctx, c, k))
	for key, size := range map[string]int{k.Events(3): 200_000, k.Dead(3): 1, k.Outbox(5): 1} {
		values := []any{"key", strings.Repeat("k", size)}
		testkit.Must(t, c.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: values}).Err())
	}
	findings := look(t, tight)
	expect(t, findings, "state.unread", doctor.OK, "unread events in 1 partition", "partition 3")
	expect(t, findings, "state.outbox", doctor.OK, "1 transition", "partition 5")
	expect(t, findings, "state.dead", doctor.Warning, "1 dead letter", k.Dead(3))
}

// For each user, doctor reports what the user may see, and names what it may not see.
func TestUsers(t *testing.T) {
	secured := streamtest.NewSecuredRedis(t, shipped(t)...)
	testkit.Must(t, stream.CheckMeta(t.Context(), streamtest.Connect(t, secured.As("operator")), keysOf(t, 16)))
	for _, user := range []string{"doctor", "serve", "producer"} {
		golden(t, "user-"+user, look(t, streamtest.Connect(t, secured.As(user))))
	}
	expect(t, look(t, streamtest.Connect(t, secured.As("operator"))), "redis.acl", doctor.Note,
		"user operator may do everything")
	operator := streamtest.Connect(t, secured.As("operator"))
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "serve", "-zadd", "+acl|whoami", "+acl|dryrun").Err())
	expect(t, look(t, streamtest.Connect(t, secured.As("serve"))), doctor.RedisRights, doctor.Problem,
		"user serve may not run zadd on sc:*")
}

// Any right that is removed from a user is reported as missing. The server finds it, not a list of ours.
func TestMissingRights(t *testing.T) {
	secured := streamtest.NewSecuredRedis(t)
	operator, c := streamtest.Connect(t, secured.As("operator")), streamtest.Connect(t, secured.As("doctor"))
	expect(t, look(t, c), "redis.users", doctor.OK, "work, serve, producer")
	tried := 0
	for line := range strings.Lines(deploy.UsersACL) {
		fields := strings.Fields(line)
		user := fields[1]
		if user != "work" && user != "serve" && user != "producer" {
			continue
		}
		for _, f := range fields[2:] {
			command, ok := strings.CutPrefix(f, "+")
			if !ok || strings.HasSuffix(f, ")") {
				continue
			}
			testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", user, "-"+command).Err())
			if command == "function|load" { // calls do without it
				expect(t, look(t, c), "redis.users", doctor.Note, user+" may not run function|load on", "EVALSHA",
					"streamcounter functions load")
			} else if command != "hget" || user != "producer" { // a right that a selector grants is still granted
				expect(t, look(t, c), "redis.users", doctor.Problem, "user "+user+" may not run "+command+" ",
					"+"+command)
			}
			testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", user, "+"+command).Err())
			tried++
		}
	}
	if tried < 60 {
		t.Errorf("%d rights were tried: is the file read?", tried)
	}
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "work", "-function|load").Err())
	asWork := look(t, streamtest.Connect(t, secured.As("work")))
	expect(t, asWork, "redis.functions", doctor.OK, "if its user may")
	expect(t, asWork, "redis.acl", doctor.Note, "user work may not run function|load on", "EVALSHA")
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "work", "-hlen").Err())
	expect(t, look(t, c), "redis.users", doctor.Problem, "user work may not run hlen on")
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "work", "+hlen").Err())
	testkit.Must(t, lua.NewCaller(operator).Load(t.Context()))
	expect(t, look(t, c), "redis.users", doctor.OK, "work, serve, producer") // its library is loaded
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "work", "resetkeys", "~sc2:*").Err())
	expect(t, look(t, c), "redis.users", doctor.Problem, "user work may not run", "~sc:*")
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "work", "~sc:*").Err())
	expect(t, look(t, c), "redis.acl-log", doctor.Note, "not checked", "operator") // that right also allows a reset
	testkit.Must(t, operator.Do(t.Context(), "ACL", "LOG", "RESET").Err())
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "doctor", "+acl|log").Err())
	expect(t, look(t, c), "redis.acl-log", doctor.OK)
	_ = streamtest.Connect(t, secured.As("work")).FlushAll(t.Context()).Err()
	expect(t, look(t, c), "redis.acl-log", doctor.Warning, "work was refused the command flushall")
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "doctor", "-acl|dryrun", "-config|get",
		"-xpending").Err())
	findings := look(t, c)
	expect(t, findings, "redis.acl", doctor.Note, "user doctor, not checked", "+acl|dryrun")
	expect(t, findings, "redis.settings", doctor.Note, "not checked", "stream-node-max-bytes", "+config|get")
	testkit.Must(t, operator.Do(t.Context(), "HSET", "sc:meta", "version", 1, "partitions", 16).Err())
	expect(t, look(t, c), "state", doctor.Note, "not checked", "xpending")
}

// A default user without rights makes Redis leave out what the scripts wrote when it starts: doctor reports that before
// a restart, and after it. Half the rights are not enough.
func TestReplay(t *testing.T) {
	secured := streamtest.NewSecuredRedis(t, "--appendonly", "yes")
	operator, work := streamtest.Connect(t, secured.As("operator")), streamtest.Connect(t, secured.As("work"))
	expect(t, look(t, operator), "redis.default-user", doctor.OK)
	for _, x := range []struct{ rules, lacks string }{{"+@all -pexpireat", "not run pexpireat on"},
		{"+pexpireat resetkeys ~sc2:*", "xgroup|create, pexpireat on sc:*"}, {"~* -@all", "set, del,"}} {
		args := []any{"ACL", "SETUSER", "default"}
		for _, rule := range strings.Fields(x.rules) {
			args = append(args, rule)
		}
		testkit.Must(t, operator.Do(t.Context(), args...).Err())
		expect(t, look(t, streamtest.Connect(t, secured.As("doctor"))), "redis.default-user", doctor.Problem, x.lacks,
			"ACL SETUSER default ~* &* +@all")
	}
	testkit.Must(t, work.Eval(t.Context(), "redis.call('SET', KEYS[1], 1) redis.call('PEXPIRE', KEYS[1], 9e4) return 1",
		[]string{"sc:{1}:a"}).Err())
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SAVE").Err())
	secured.Stop()
	secured.Start()
	expect(t, look(t, operator), "redis.acl-log", doctor.Problem, "left out writes", ": pexpireat, set",
		"ACL SETUSER default")
	_ = streamtest.Connect(t, secured.As("work")).FlushAll(t.Context()).Err()
	expect(t, look(t, operator), "redis.acl-log", doctor.Problem, "left out")
	expect(t, look(t, operator), "redis.acl-log", doctor.Warning, "work was refused the command flushall")
	testkit.Must(t, operator.ConfigSet(t.Context(), "appendonly", "no").Err())
	for _, f := range look(t, operator) {
		if f.Check == "redis.default-user" {
			t.Errorf("without an append-only file nothing is replayed: %+v", f)
		}
	}
}

// At a start only harmful settings are reported, and for a user with few rights nothing else is read.
func TestStart(t *testing.T) {
	own := streamtest.OwnRedis(t, append(shipped(t), "--stream-node-max-bytes", "4096", "--maxmemory-policy",
		"volatile-ttl")...)
	c := streamtest.Connect(t, own.URL())
	var checks []string
	for _, f := range doctor.Start(t.Context(), c, keysOf(t, 16), "serve", time.Minute) {
		checks = append(checks, f.Check)
	}
	if got, want := strings.Join(checks, " "), "redis.maxmemory-policy redis.stream-node-max-bytes"; got != want {
		t.Errorf("told at the start: %s; want %s", got, want)
	}
	secured := streamtest.NewSecuredRedis(t, append(shipped(t), "--maxmemory-policy", "volatile-ttl")...)
	start := func(user, role string) []doctor.Finding {
		return doctor.Start(t.Context(), streamtest.Connect(t, secured.As(user)), keysOf(t, 16), role, time.Minute)
	}
	for _, user := range []string{"work", "serve"} {
		findings := start(user, user)
		expect(t, findings, "redis.maxmemory-policy", doctor.Problem)
		if len(findings) != 1 {
			t.Errorf("%s: the findings are %+v", user, findings)
		}
	}
	if list := secured.Refused(t); len(list) > 0 {
		t.Errorf("a start was refused %v", list)
	}
	for _, x := range []struct{ user, role, lacks string }{
		{"producer", "serve", "run fcall, eval on"}, {"doctor", "work", "run fcall, eval on"},
		{"serve", "work", "run exists, del, hincrby"},
	} {
		expect(t, start(x.user, x.role), doctor.RedisRights, doctor.Problem, "user "+x.user+" may not "+x.lacks,
			"or use `"+x.role+"` of deploy/users.acl")
	}
	operator := streamtest.Connect(t, secured.As("operator"))
	for _, rule := range []string{"-scan", "-eval"} { // functions do without the second, and nobody can ask then
		testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "serve", rule).Err())
		if findings := start("serve", "serve"); len(findings) != 1 {
			t.Errorf("serve with %s: the findings are %+v", rule, findings)
		}
	}
	testkit.Must(t, operator.Do(t.Context(), "ACL", "SETUSER", "serve", "-fcall").Err())
	expect(t, start("serve", "serve"), doctor.RedisRights, doctor.Problem, "fcall, eval")
}

func TestExitCode(t *testing.T) {
	of := func(check string, s doctor.Severity) doctor.Finding { return doctor.Finding{Check: check, Severity: s} }
	for _, x := range []struct {
		findings []doctor.Finding
		want     int
	}{
		{nil, 0},
		{[]doctor.Finding{of("a", doctor.OK), of("b", doctor.Note)}, 0},
		{[]doctor.Finding{of("a", doctor.Warning), of("b", doctor.Note)}, 1},
		{[]doctor.Finding{of("a", doctor.Problem)}, 1},
		{[]doctor.Finding{of("a", doctor.Warning), of(doctor.RedisReachable, doctor.Problem)}, 2},
		{[]doctor.Finding{of(doctor.NATSReachable, doctor.Problem), of(doctor.RedisReachable, doctor.OK)}, 2},
		{[]doctor.Finding{of(doctor.NATSReachable, doctor.OK)}, 0},
	} {
		if got := doctor.NewReport(x.findings).ExitCode(); got != x.want {
			t.Errorf("%+v: exit code %d, want %d", x.findings, got, x.want)
		}
	}
}

// Processes with different rules are named, with the fingerprint of their rules: in a note while a reload may be in
// progress, then in a warning.
func TestDifferentRules(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	k := keysOf(t, 16)
	testkit.Must(t, stream.CheckMeta(t.Context(), c, k))
	expect(t, look(t, c), "state.rules", doctor.OK, "no process runs")
	now := c.Time(t.Context()).Val()
	runs := func(name, print string, since time.Duration) {
		t.Helper()
		testkit.Must(t, c.HSet(t.Context(), k.Processes(), name, fmt.Sprintf("%s %d %d", print,
			now.Add(-since).UnixMilli(), now.Add(time.Hour).UnixMilli())).Err())
	}
	runs("work a", "aa11", time.Hour)
	runs("serve b", "aa11", time.Minute)
	expect(t, look(t, c), "state.rules", doctor.OK, "the same", "aa11: serve b, work a")
	runs("work c", "bb22", 30*time.Second)
	expect(t, look(t, c), "state.rules", doctor.Note, "aa11: serve b, work a", "bb22: work c", "reload")
	runs("serve b", "aa11", time.Hour)
	runs("work c", "bb22", 2*time.Minute)
	expect(t, look(t, c), "state.rules", doctor.Warning, "2 different sets", "aa11: serve b, work a", "bb22: work c",
		"same rules file")
}

// Prune deletes the libraries of other versions that no process uses. It keeps the library of this version, those
// that a process has announced, and libraries that are not ours.
func TestPrune(t *testing.T) {
	c := streamtest.Connect(t, streamtest.OwnRedis(t).URL())
	ctx := t.Context()
	keys, err := stream.NewKeys("sc", 1)
	testkit.Must(t, err)
	l := lua.Library()
	for _, name := range []string{l.Name, "streamcounter_old", "streamcounter_used", "streamcounter_ended", "theirs"} {
		testkit.Must(t, c.FunctionLoad(ctx, strings.ReplaceAll(l.Text, l.Name, name)).Err())
	}
	now := c.Time(ctx).Val()
	testkit.Must(t, c.ZAdd(ctx, keys.Libraries(),
		redis.Z{Member: "streamcounter_used", Score: float64(now.Add(time.Minute).UnixMilli())},
		redis.Z{Member: "streamcounter_ended", Score: float64(now.Add(-time.Minute).UnixMilli())}).Err())
	deleted, err := doctor.Prune(ctx, c, keys)
	if got := strings.Join(deleted, " "); err != nil || got != "streamcounter_ended streamcounter_old" &&
		got != "streamcounter_old streamcounter_ended" {
		t.Errorf("deleted %q, %v", got, err)
	}
	list, err := c.FunctionList(ctx, redis.FunctionListQuery{}).Result()
	testkit.Must(t, err)
	if len(list) != 3 {
		t.Errorf("%d libraries are left, want 3", len(list))
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// leastWindow is long compared with the time in which a slow machine folds an event, and short enough for a test to
// wait for the end of levels.
const leastWindow = 1500

// leastRules has a rule for each algorithm; its keys are "algorithm:…".
func leastRules(limit int) string {
	var b strings.Builder
	b.WriteString("rules:\n")
	for _, a := range windows.Algorithms {
		fmt.Fprintf(&b,
			"  - name: %s\n    match: \"%s:*\"\n    algorithm: %s\n    windows: [{limit: %d, per: %dms}]\n    "+
				"alerts: [50%%]\n    hold: 10ms\n", a, a, a, limit, leastWindow)
	}
	return b.String()
}

func natsAs(t testing.TB, n *streamtest.SecuredNATS, user string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	// the server tells
	nc, err := nats.Connect(n.As(user), nats.CustomInboxPrefix("_INBOX."+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	return nc, js
}

// heard holds the messages that a subscriber received: "state key" → how often.
type heard struct {
	mu   sync.Mutex
	seen map[string]int
}

func (h *heard) take(data []byte) {
	var t api.Transition
	if err := json.Unmarshal(data, &t); err != nil {
		t.State = api.State(err.Error())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen == nil {
		h.seen = map[string]int{}
	}
	h.seen[fmt.Sprintf("%s %s", t.State, t.Key)]++
}

func (h *heard) await(t testing.TB, who, state, what string) {
	t.Helper()
	h.awaitOr(t, who, state, what, func() {})
}

// awaitOr repeats an action each time that two windows have passed without success: an event that is folded when its
// aligned window is over throttles nothing.
func (h *heard) awaitOr(t testing.TB, who, state, what string, again func()) {
	t.Helper()
	last := time.Now()
	streamtest.Eventually(t, time.Minute, who+" hears "+state+" of every algorithm", func() (bool, string) {
		if time.Since(last) > 2*leastWindow*time.Millisecond {
			again()
			last = time.Now()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, a := range windows.Algorithms {
			if h.seen[state+" "+a+":"+what] == 0 {
				return false, fmt.Sprintf("nothing of %s:%s; heard: %v", a, what, slices.Sorted(maps.Keys(h.seen)))
			}
		}
		return true, ""
	})
}

// unseenByDoctor matches the checks that the user doctor of deploy/ may not make.
var unseenByDoctor = regexp.MustCompile(
	`not checked: how often the server syncs|not checked: this user lacks the right, as it could then clear the log`)

var readyAt = regexp.MustCompile(`"msg":"ready".*"http":"([^"]+)"`)

// Each user of deploy/users.acl and deploy/nats-permissions.conf can do its work, with every algorithm, and no
// command is refused on the way. The tests of consumers cover the other work of a worker (claims, dead letters, gaps)
// with the user work.
func TestTheShippedUsersCanDoTheirWork(t *testing.T) {
	ctx := t.Context()
	secured, natsServer := streamtest.NewSecuredRedis(t), streamtest.NewSecuredNATS(t)
	keys, err := stream.NewKeys("sc", stream.DefaultPartitions)
	testkit.Must(t, err)
	rules := testkit.WriteFile(t, "rules.yml", leastRules(10))
	operator, work := streamtest.Connect(t, secured.As("operator")), streamtest.Connect(t, secured.As("work"))

	// producer: our own command.
	produce := func(what string) {
		t.Helper()
		var lines strings.Builder
		for _, a := range windows.Algorithms {
			fmt.Fprintf(&lines, "%s:%s 30\n", a, what)
		}
		code, out, errs := runProgram(t, lines.String(), "append", "--redis", secured.As("producer"))
		if code != 0 {
			t.Fatalf("append as producer: exit code %d\n%s%s", code, out, errs)
		}
	}
	testkit.Must(t, stream.CheckMeta(ctx, work, keys)) // a producer may not create the prefix
	workers := []*process{}
	for range 2 {
		p := startProgram(t, "work", "--redis", secured.As("work"), "--nats", natsServer.As("relay"), "--rules",
			rules, "--http", "127.0.0.1:0")
		p.until(`"msg":"ready"`)
		workers = append(workers, p)
	}
	server := startServe(t, "--redis", secured.As("serve"), "--rules", rules)
	base := server.base()

	// subscriber: a plain subscription from the start. alerts: a durable consumer.
	var live, alerted heard
	nc, js := natsAs(t, natsServer, "subscriber")
	_, err = nc.Subscribe("sc.throttle.>", func(m *nats.Msg) { live.take(m.Data) })
	testkit.Must(t, err)
	testkit.Must(t, nc.Flush())
	_, alertsJS := natsAs(t, natsServer, "alerts")
	_, sinksJS := natsAs(t, natsServer, "sinks")
	for _, filter := range []string{"", "sc.alert.>"} { // the request has another subject
		_, err := alertsJS.CreateOrUpdateConsumer(ctx, "SC_ALERTS", jetstream.ConsumerConfig{Durable: "pager",
			FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy})
		testkit.Must(t, err)
	}
	pager, err := alertsJS.Consumer(ctx, "SC_ALERTS", "pager") // as a consumer that reconnects finds it
	testkit.Must(t, err)
	paging, err := pager.Consume(func(m jetstream.Msg) {
		alerted.take(m.Data())
		if err := m.DoubleAck(ctx); err != nil {
			t.Errorf("the alert consumer cannot acknowledge: %v", err)
		}
	})
	testkit.Must(t, err)
	defer paging.Stop()

	// sinks: a webhook and an Alertmanager, which both accept everything.
	var delivered heard
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct{ Data json.RawMessage }
		_ = json.NewDecoder(r.Body).Decode(&body) // for Alertmanager it is a list
		delivered.take(body.Data)
	}))
	defer hook.Close()
	deliver := startProgram(t, "sinks", "--nats", natsServer.As("sinks"), "--http", "127.0.0.1:0", "--sinks",
		testkit.WriteFile(t, "sinks.yml", fmt.Sprintf("sinks:\n  - {name: pager, type: webhook, url: %q, "+
			"secret_file: %s}\n  - {name: am, type: alertmanager, url: %q}\n", hook.URL, testkit.WriteFile(t, "secret",
			"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), hook.URL)))
	deliver.until(`"msg":"ready"`)
	streamtest.Eventually(t, 30*time.Second, "both sinks have their consumers", func() (bool, string) {
		for _, name := range []string{"sink-pager", "sink-am"} {
			if _, err := sinksJS.Consumer(ctx, "SC_ALERTS", name); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})

	produce("pushed")
	live.awaitOr(t, "the subscriber", "throttled", "pushed", func() { produce("pushed") })
	alerted.await(t, "the alert consumer", "raised", "pushed")
	delivered.await(t, "the webhook", "raised", "pushed")

	// serve: checks, charged and denied; events; the list; a read and a reset.
	ask := func() {
		for _, a := range windows.Algorithms {
			key := url.QueryEscape(a + ":asked")
			for range 2 {
				if code, body := request(t, "GET", base+"/v1/check?cost=10&key="+key, ""); code != 200 && code != 429 ||
					strings.Contains(body, `"source":"policy"`) {
					t.Errorf("check of %s: %d %s", key, code, body)
				}
			}
		}
	}
	ask()
	for _, several := range []string{"window:*", "ip:192.0.2.0/24"} { // it counts the keys that they apply to
		if code, body := request(t, "PUT", base+"/v1/overrides/"+url.PathEscape(several)+"?dry_run=true",
			`{"block":true}`); code != 200 {
			t.Errorf("dry run of %s: %d %s", several, code, body)
		}
	}
	var posted strings.Builder
	for _, a := range windows.Algorithms {
		key := url.QueryEscape(a + ":asked")
		if code, body := request(t, "GET", base+"/v1/keys/"+key, ""); code != 200 {
			t.Errorf("look at %s: %d %s", key, code, body)
		}
		if code, body := request(t, "DELETE", base+"/v1/keys/"+key, ""); code != 200 && code != 204 {
			t.Errorf("reset of %s: %d %s", key, code, body)
		}
		fmt.Fprintf(&posted, "{\"key\":%q,\"count\":30}\n", a+":posted")
	}
	live.awaitOr(t, "the subscriber", "throttled", "asked", ask)
	post := func() {
		t.Helper()
		resp, err := http.Post(base+"/v1/events", "application/x-ndjson", strings.NewReader(posted.String()))
		if err != nil || resp.StatusCode != http.StatusAccepted {
			t.Fatalf("events as serve: %v, %v", resp, err)
		}
		resp.Body.Close()
	}
	post()
	live.awaitOr(t, "the subscriber", "throttled", "posted", post)
	for _, path := range []string{"/v1/throttled", "/readyz", "/metrics"} {
		if code, body := request(t, "GET", base+path, ""); code != 200 {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
	}

	// A subscriber that comes later: the snapshot by an ordered consumer, then changes.
	produce("late")
	live.awaitOr(t, "the subscriber", "throttled", "late", func() { produce("late") })
	var later heard
	ordered, err := js.OrderedConsumer(ctx, "SC_THROTTLE",
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{"sc.throttle.>"},
			DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy})
	testkit.Must(t, err)
	following, err := ordered.Consume(func(m jetstream.Msg) { later.take(m.Data()) })
	testkit.Must(t, err)
	defer following.Stop()

	// Other rules for keys that have a level, then the end of all levels.
	rewrite(t, rules, leastRules(12))
	later.await(t, "a later subscriber", "released", "late")
	alerted.await(t, "the alert consumer", "cleared", "late")
	delivered.await(t, "the webhook", "cleared", "late")

	// A subscriber that starts again, as after a gap, deletes its consumer.
	fetched, err := js.OrderedConsumer(ctx, "SC_THROTTLE",
		jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy})
	testkit.Must(t, err)
	for range 2 {
		_, err := fetched.Next(jetstream.FetchMaxWait(10 * time.Second))
		testkit.Must(t, err)
	}
	_, relayJS := natsAs(t, natsServer, "relay")
	streamtest.Eventually(t, 30*time.Second, "a consumer that is not used any more is gone", func() (bool, string) {
		s, err := relayJS.Stream(ctx, "SC_THROTTLE")
		if err != nil {
			return false, err.Error()
		}
		n := s.CachedInfo().State.Consumers
		return n == 2, fmt.Sprintf("%d consumers", n)
	})

	for _, p := range append(workers, server, deliver) {
		if code := p.interrupt(); code != 0 {
			t.Errorf("exit code %d after SIGINT:\n%s", code, p.text())
		}
		if text := p.text(); strings.Contains(text, "NOPERM") || strings.Contains(text, "iolation") {
			t.Errorf("a process was refused something:\n%s", text)
		}
	}
	// doctor: it can read everything here, and all users have the rights that they need.
	code, report, text := runDoctor(t, "--redis", secured.As("doctor"), "--nats", natsServer.As("doctor"))
	if code != 1 || strings.Contains(unseenByDoctor.ReplaceAllString(text, ""), "not checked") {
		t.Errorf("doctor: exit code %d, want 1 for a Redis that keeps nothing\n%s", code, text)
	}
	wantFinding(t, report, "redis.users", doctor.OK, "work, serve, producer")
	wantFinding(t, report, "redis.acl-log", doctor.Note, "operator") // doctor could also reset it
	wantFinding(t, report, "state.unread", doctor.OK, "")

	if left := operator.Keys(ctx, "sc:*:relay").Val(); len(left) > 0 {
		t.Errorf("locks that were not given back: %v", left)
	}
	if list := secured.Refused(t); len(list) > 0 {
		t.Errorf("Redis refused:\n%s", strings.Join(list, "\n"))
	}
	if list := natsServer.Violations(); len(list) > 0 {
		t.Errorf("NATS refused:\n%s", strings.Join(list, "\n"))
	}
}

// On Redis no user can do another's work, or read data that it does not need.
func TestTheShippedRedisUsersCanDoNoMore(t *testing.T) {
	secured := streamtest.NewSecuredRedis(t)
	operator := streamtest.Connect(t, secured.As("operator"))
	ctx := context.Background()
	for _, fields := range [][]any{{"XADD", "sc:{6}:events", "1-1", "key", "user:42"},
		{"XADD", "sc:{6}:log:user:42", "1-1", "count", 1, "total", 1}, {"SET", "other", 1},
		{"HSET", "sc:meta", "partitions", 16}} {
		testkit.Must(t, operator.Do(ctx, fields...).Err())
	}
	everybody := []string{"FLUSHALL", "FLUSHDB", "CONFIG SET maxmemory 1", "KEYS *", "ACL LIST",
		"ACL SETUSER serve +@all", "ACL GETUSER work", "SHUTDOWN NOSAVE",
		"SCRIPT FLUSH", "FUNCTION FLUSH", "FUNCTION DELETE x", "MONITOR",
		"CLIENT LIST", "CLIENT KILL ID 1", "REPLICAOF NO ONE", "SAVE",
		"MIGRATE h 1 k 0 1", "RENAME sc:meta x", "SELECT 1",
		"GET other", "PUBLISH a b", "SUBSCRIBE a", "XADD sc2:{6}:events * key k", "HGET sc2:meta partitions"}
	for user, more := range map[string][]string{
		"producer": {"FUNCTION LIST", "FUNCTION LOAD x", "FCALL x 0", "SCAN 0", "CONFIG GET maxmemory",
			"INFO", "XRANGE sc:{6}:events - +", "XLEN sc:{6}:events",
			"XREVRANGE sc:{6}:log:user:42 + -", "XADD sc:{6}:log:user:42 * count 1 total 1",
			"PEXPIRE sc:{6}:log:user:42 1", "XADD sc:{6}:outbox * a b", "HGET sc:{6}:levels user:42", "EVAL return 0",
			"HSET sc:meta partitions 8", "HSETNX sc:meta other 8",
			"DEL sc:meta", "XGROUP DESTROY sc:{6}:events workers", "XADD sc:{xy}:events * key k",
			"XADD sc:{x}:events * key k", "XADD sc:{12345}:events * key k", "PEXPIRE sc:meta 1"},
		"serve": {"CONFIG GET maxmemory", "DEL sc:meta", "XGROUP DESTROY sc:{6}:events workers",
			"XREADGROUP GROUP workers me STREAMS sc:{6}:events >", "XACK sc:{6}:events workers 1-1",
			"XDEL sc:{6}:events 1-1", "XTRIM sc:{6}:events MAXLEN 0"},
		"work": {"CONFIG GET maxmemory", "XGROUP DESTROY sc:{6}:events workers", "XTRIM sc:{6}:events MAXLEN 0",
			"HKEYS sc:{6}:levels"},
		"doctor": {"FUNCTION LOAD x", "FCALL x 0", "SCAN 0", "XADD sc:{6}:events * key k",
			"HSET sc:meta partitions 8", "DEL sc:meta",
			"EVAL return 0", "XREADGROUP GROUP workers me STREAMS sc:{6}:events >", "XACK sc:{6}:events workers 1-1",
			"PEXPIRE sc:meta 1", "ACL LOG RESET"},
	} {
		t.Run(user, func(t *testing.T) {
			c := streamtest.Connect(t, secured.As(user))
			testkit.Must(t, c.Ping(ctx).Err())
			for _, text := range append(more, everybody...) {
				var args []any
				for _, w := range strings.Fields(text) {
					args = append(args, w)
				}
				if text == "EVAL return 0" {
					args = []any{"EVAL", "return 1", "0"}
				}
				if err := c.Do(ctx, args...).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
					t.Errorf("%s: %v, want NOPERM", text, err)
				}
			}
			// A script does not get around this.
			if err := c.Do(ctx, "EVAL", "return redis.call('FLUSHALL')", "0").Err(); err == nil {
				t.Error("a script may flush everything")
			}
		})
	}
	// With the files of deploy/ nobody can log in: not without a name, and not without a password that the operator
	// has set.
	if err := streamtest.Connect(t, secured.URL()).Ping(ctx).Err(); err == nil ||
		!strings.HasPrefix(err.Error(), "NOAUTH") {
		t.Errorf("without a name: %v, want NOAUTH", err)
	}
	if n := operator.DBSize(ctx).Val(); n != 4 {
		t.Errorf("%d keys are left of 4", n)
	}
}

// A restart of Redis with the shipped users keeps what the scripts wrote: Redis replays the append-only file as the
// default user, and leaves out the transactions of a script that this user may not run.
func TestARestartOfTheShippedRedisForgetsNothing(t *testing.T) {
	secured := streamtest.NewSecuredRedis(t, "--appendonly", "yes")
	operator := streamtest.Connect(t, secured.As("operator"))
	base := startServe(t, "--redis", secured.As("serve")).base()
	if code, body := request(t, "GET", base+"/v1/check?key=user:1&cost=3", ""); code != 200 {
		t.Fatalf("a check: %d %s", code, body)
	}
	if code, body := request(t, "PUT", base+"/v1/overrides/user:2", `{"block":true}`); code != 200 {
		t.Fatalf("a block: %d %s", code, body)
	}
	held := func() map[string]string {
		all := map[string]string{}
		for _, name := range operator.Keys(t.Context(), "sc:{*").Val() {
			// Two of these are refused, because a key has one type. DUMP would also have the order of fields.
			all[name] = fmt.Sprint(operator.HGetAll(t.Context(), name).Val(), operator.XRange(t.Context(), name, "-",
				"+").Val(), operator.ZRangeWithScores(t.Context(), name, 0, -1).Val())
		}
		return all
	}
	before := held()
	secured.Stop()
	secured.Start()
	if after := held(); len(before) < 2 || !maps.Equal(before, after) {
		t.Errorf("Redis held %q before the restart, and %q after it", before, after)
	}
}

// The same on NATS.
func TestTheShippedNATSUsersCanDoNoMore(t *testing.T) {
	server := streamtest.NewSecuredNATS(t)
	if _, err := nats.Connect(server.URL()); err == nil {
		t.Error("somebody without a name is let in")
	}
	const publish, subscribe = "Publish Violation", "Subscription Violation"
	everybody := map[string]string{
		"$JS.API.STREAM.DELETE.SC_THROTTLE": publish, "$JS.API.STREAM.PURGE.SC_ALERTS": publish,
		"$JS.API.STREAM.UPDATE.SC_ALERTS": publish, "$JS.API.STREAM.NAMES": publish,
		"$JS.API.STREAM.MSG.DELETE.SC_ALERTS": publish, "$JS.API.STREAM.CREATE.OTHER": publish,
		"$JS.API.CONSUMER.NAMES.SC_ALERTS": publish, "other": publish, "$SYS.REQ.SERVER.PING": publish,
		"_INBOX.>": subscribe, "_INBOX.x": subscribe, ">": subscribe, "$JS.API.>": subscribe, "sc.alert.>": subscribe,
		"_INBOX.operator.>": subscribe,
	}
	for user, more := range map[string]map[string]string{
		"relay": {"$JS.API.CONSUMER.CREATE.SC_THROTTLE.x": publish,
			"$JS.API.CONSUMER.MSG.NEXT.SC_ALERTS.pager": publish, "_INBOX.subscriber.>": subscribe,
			"sc.throttle.>": subscribe},
		"subscriber": {"sc.throttle.api.user:42": publish, "sc.alert.api.80.user:42": publish,
			"$JS.API.CONSUMER.CREATE.SC_ALERTS.x": publish, "$JS.API.STREAM.INFO.SC_THROTTLE": publish,
			"_INBOX.alerts.>": subscribe},
		"alerts": {"sc.throttle.api.user:42": publish, "sc.alert.api.80.user:42": publish,
			"$JS.API.CONSUMER.CREATE.SC_ALERTS.other": publish, "$JS.API.CONSUMER.CREATE.SC_THROTTLE.x": publish,
			"$JS.API.CONSUMER.DELETE.SC_ALERTS.pager": publish, "sc.throttle.>": subscribe,
			"_INBOX.subscriber.>": subscribe},
		"sinks": {"sc.throttle.api.user:42": publish, "sc.alert.api.80.user:42": publish,
			"$JS.API.CONSUMER.CREATE.SC_THROTTLE.x": publish, "$JS.API.STREAM.DELETE.SC_SINKS": publish,
			"sc.throttle.>": subscribe, "_INBOX.alerts.>": subscribe},
		"doctor": {"sc.throttle.api.user:42": publish, "$JS.API.STREAM.CREATE.SC_THROTTLE": publish,
			"$JS.API.CONSUMER.CREATE.SC_ALERTS.x": publish, "$JS.API.STREAM.MSG.GET.SC_ALERTS": publish,
			"sc.throttle.>": subscribe},
	} {
		t.Run(user, func(t *testing.T) {
			nc, _ := natsAs(t, server, user)
			for _, list := range []map[string]string{more, everybody} {
				for subject, want := range list {
					var err error
					if want == publish {
						err = nc.Publish(subject, []byte("{}"))
					} else {
						_, err = nc.SubscribeSync(subject)
					}
					if err == nil {
						err = nc.Flush() // the answer comes after the server has checked the operation
					}
					testkit.Must(t, err)
					said := server.Violations()
					if want == publish && user != "relay" && user != "sinks" {
						subject = strings.Replace(subject, "$JS.API.", "sc.API.", 1) // as the accounts map the subject
					}
					if len(said) == 0 || !strings.Contains(said[len(said)-1], want) ||
						!strings.Contains(said[len(said)-1], fmt.Sprintf("Subject %q", subject)) {
						t.Errorf("%s: not refused; the last that was: %v", subject, said[max(0, len(said)-1):])
					}
				}
			}
		})
	}
}

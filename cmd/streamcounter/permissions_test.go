package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
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
	streamtest.Eventually(t, who+" hears "+state+" of every algorithm", func() (bool, string) {
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
	keys := keysOf(t, "sc")
	rules := testkit.WriteFile(t, "rules.yml", leastRules(10))
	operator, work := streamtest.Connect(t, secured.As("operator")), streamtest.Connect(t, secured.As("work"))
	expect(t, "serve --http 127.0.0.1:0 --rules "+rules+" --redis "+secured.As("producer"), 1,
		"user producer may not run fcall, eval", "use `serve` of deploy/users.acl")
	expect(t, "doctor --nats= --redis "+secured.As("producer"), 1, "1 problem")
	testkit.Must(t, operator.Do(ctx, "ACL", "LOG", "RESET").Err())

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

	// subscriber: a plain subscription from the start. The tests of client/guard have its ordered consumer.
	var live heard
	nc, _ := natsAs(t, natsServer, "subscriber")
	_, err := nc.Subscribe("sc.throttle.>", func(m *nats.Msg) { live.take(m.Data) })
	testkit.Must(t, err)
	testkit.Must(t, nc.Flush())
	_, sinksJS := natsAs(t, natsServer, "sinks")

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
	streamtest.Eventually(t, "both sinks have their consumers", func() (bool, string) {
		for _, name := range []string{"sink-pager", "sink-am"} {
			if _, err := sinksJS.Consumer(ctx, "SC_ALERTS", name); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})

	produce("pushed")
	live.awaitOr(t, "the subscriber", "throttled", "pushed", func() { produce("pushed") })
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
		if resp, body := call(t, http.DefaultClient, "POST", base+"/v1/events", posted.String(),
			"Content-Type: application/x-ndjson"); resp.StatusCode != http.StatusAccepted {
			t.Fatalf("events as serve: %s %s", resp.Status, body)
		}
	}
	post()
	live.awaitOr(t, "the subscriber", "throttled", "posted", post)
	for _, path := range []string{"/v1/throttled", "/readyz", "/metrics"} {
		if code, body := request(t, "GET", base+path, ""); code != 200 {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
	}

	produce("late")
	live.awaitOr(t, "the subscriber", "throttled", "late", func() { produce("late") })

	// Other rules for keys that have a level, then the end of all levels.
	rewrite(t, rules, leastRules(12))
	live.await(t, "the subscriber", "released", "late")
	delivered.await(t, "the webhook", "cleared", "late")

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

// refusedTo reads what each user of a server may not do: user → lines. The section everybody is part of each.
func refusedTo(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	users := map[string][]string{}
	for section := range strings.SplitSeq(strings.TrimPrefix(string(text), "# "), "\n# ") {
		lines := strings.Split(strings.TrimSpace(section), "\n")
		users[lines[0]] = lines[1:]
	}
	everybody := users["everybody"]
	delete(users, "everybody")
	if len(everybody) == 0 || len(users) < 2 {
		t.Fatalf("%s: %d users, %d lines for everybody", path, len(users), len(everybody))
	}
	for user := range users {
		users[user] = append(users[user], everybody...)
	}
	return users
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
	for user, list := range refusedTo(t, "testdata/refused.redis") {
		t.Run(user, func(t *testing.T) {
			c := streamtest.Connect(t, secured.As(user))
			testkit.Must(t, c.Ping(ctx).Err())
			for _, text := range list {
				var args []any
				for _, w := range strings.Fields(text) {
					args = append(args, w)
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
	for user, list := range refusedTo(t, "testdata/refused.nats") {
		t.Run(user, func(t *testing.T) {
			nc, _ := natsAs(t, server, user)
			for _, line := range list {
				want := "Subscription Violation"
				var err error
				subject, publish := strings.CutPrefix(line, "publish ")
				if publish {
					want, err = "Publish Violation", nc.Publish(subject, []byte("{}"))
				} else {
					subject = strings.TrimPrefix(line, "subscribe ")
					_, err = nc.SubscribeSync(subject)
				}
				testkit.Must(t, err)
				testkit.Must(t, nc.Flush()) // the answer comes after the server has checked the operation
				said := server.Violations()
				if publish && user != "relay" && user != "sinks" {
					subject = strings.Replace(subject, "$JS.API.", "sc.API.", 1) // as the accounts map the subject
				}
				if len(said) == 0 || !strings.Contains(said[len(said)-1], want) ||
					!strings.Contains(said[len(said)-1], fmt.Sprintf("Subject %q", subject)) {
					t.Errorf("%s: not refused; the last that was: %v", line, said[max(0, len(said)-1):])
				}
			}
		})
	}
}

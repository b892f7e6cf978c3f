package httpapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// margin is what an answer may take beyond the deadline on a machine that is
// busy. Without a deadline it would take the client's 5 s.
const margin = 2 * time.Second

func onError(name string, o windows.OnError) *windows.Rule {
	return rule(name, func(r *windows.Rule) { r.OnError = o }, windows.Window{Limit: 2, Per: time.Hour})
}

var outageRules = []*windows.Rule{
	onError("allow", windows.OnErrorAllow), onError("deny", windows.OnErrorDeny),
	onError("local", windows.OnErrorLocal),
	rule("shadow", func(r *windows.Rule) { r.OnError, r.Shadow = windows.OnErrorDeny, true },
		windows.Window{Limit: 2, Per: time.Hour}),
}

// inTime runs one request and fails if its answer comes too late.
func inTime(t *testing.T, what string, ask func() answer) answer {
	t.Helper()
	start := time.Now()
	a := ask()
	if took := time.Since(start); took > timeout+margin {
		t.Errorf("%s took %s, want at most %s", what, took, timeout)
	}
	return a
}

// Redis freezes and leaves connections open: each rule's on_error answers within the deadline, and Redis answers again
// when it is back. A change that was sent may take effect later. (outage.txt has the answers while Redis is away.)
func TestOutage(t *testing.T) {
	server := streamtest.OwnRedis(t)
	w := newWorldWithin(t, timeout, streamtest.Connect(t, server.Addr()), outageRules...)
	testkit.Must(t, stream.CheckMeta(t.Context(), w.redis, w.keys)) // as serve does
	wantStatus(t, w.get(t, "allow:1"), 200)
	wantStatus(t, w.do(t, "POST", "/v1/events", `[{"key":"ip:1"}]`), 202)
	server.Pause()
	for key, source := range map[string]string{"allow:1": "policy", "deny:1": "", "local:1": "local",
		"shadow:1": "policy"} {
		a := inTime(t, key, func() answer { return w.get(t, key) })
		if a.str("source") != source || (a.status == 503) != (source == "") {
			t.Errorf("%s: %d %s, want it from %q", key, a.status, a.text, source)
		}
	}
	wantProblem(t, w.get(t, "local:1", "cost=2"), 429, "over-limit", "local:1")
	if n := w.counted(t)["checks_total{outcome=local_denied rule=local}"]; n != 1 {
		t.Errorf("%v denials by the local count are counted, want 1", n)
	}
	a := inTime(t, "events", func() answer { return w.do(t, "POST", "/v1/events", `[{"key":"ip:2"}]`) })
	wantProblem(t, a, 503, "outcome-unknown", "")
	if strings.Contains(a.text, "again") {
		t.Errorf("%s: events that are sent again may count twice", a.text)
	}
	if counts, _ := a.body["events"].(map[string]any); counts["unknown"] != 1.0 || counts["refused"] != nil {
		t.Errorf("%s, want an event whose outcome is unknown", a.text)
	}
	for _, c := range [][3]string{{"PUT", "/v1/overrides/allow:1", `{"block":true}`},
		{"DELETE", "/v1/overrides/allow:1", ""}, {"DELETE", "/v1/keys/allow:1", ""}} {
		wantProblem(t, inTime(t, c[0]+" "+c[1], func() answer { return w.do(t, c[0], c[1], c[2]) }), 503,
			"outcome-unknown", "outcome unknown: it may be sent again")
	}
	server.Resume()
	streamtest.Eventually(t, "events are taken again", func() (bool, string) {
		a := w.do(t, "POST", "/v1/events", `[{"key":"ip:3"}]`)
		return a.status == 202, a.text
	})
	streamtest.Eventually(t, "Redis answers again", func() (bool, string) {
		a := w.get(t, "deny:2")
		return a.status != 503 && a.str("source") == "redis", a.text
	})
}

// Redis refuses a write as a whole where its memory is full: the answer says so, and nothing is unknown.
func TestFullMemory(t *testing.T) {
	own := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, own.Addr())
	w := newWorld(t, c, rule("deny", func(r *windows.Rule) { r.OnError = windows.OnErrorDeny },
		windows.Window{Limit: 5, Per: time.Minute}), rule("allow", nil, windows.Window{Limit: 5, Per: time.Minute}))
	w.post(t, `{"key":"deny:1"}`) // the library is there
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	wantProblem(t, w.do(t, "POST", "/v1/reservations", `{"key":"deny:1"}`), 503, "unavailable", "OOM")
	wantProblem(t, w.post(t, `{"key":"deny:1"}`), 503, "unavailable", "OOM")
	const note = "Redis refuses it: OOM; rule allow has on_error: allow"
	for i := range 10 { // with the breaker closed, and then open
		if got := w.post(t, `{"key":"allow:1"}`).str("note"); got != note {
			t.Errorf("the note of check %d, which on_error decided: %q", i, got)
		}
	}
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	if n := w.used(t, "deny:1"); n != 1 {
		t.Errorf("used %d, want the first check alone", n)
	}
}

const nobody = "127.0.0.1:1"

// halfACluster is a client of a Cluster of two masters, of which one is not there:
// the slots below 8192 are at addr, the others at an address that nobody has.
func halfACluster(t *testing.T, addr string) *redis.ClusterClient {
	t.Helper()
	c := stream.NewCluster(&redis.ClusterOptions{
		Addrs: []string{addr}, ContextTimeoutEnabled: true, DialerRetries: 1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: addr}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: nobody}}},
			}, nil
		},
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// keyAt returns a key whose partition is at addr, or at the address that nobody has.
func keyAt(t *testing.T, w *world, c *redis.ClusterClient, addr string) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprintf("allow:%d", i)
		node, err := c.MasterForKey(t.Context(), w.keys.Events(w.keys.Partition(key)))
		testkit.Must(t, err)
		if strings.HasSuffix(addr, node.Options().Addr) { // the client leaves out a loopback host
			return key
		}
	}
	t.Fatal("no such key")
	return ""
}

// Failures of a dead shard count for that shard alone: checks with a key of the dead shard and a key of a healthy one
// do not stop the answers of the healthy one.
func TestADeadShardTakesNoAnswersFromTheOthers(t *testing.T) {
	addr := streamtest.EmbeddedRedis(t).Addr()
	c := halfACluster(t, addr)
	w := newWorld(t, c, rule("allow", func(r *windows.Rule) { r.OnError = windows.OnErrorAllow },
		windows.Window{Limit: 1000, Per: time.Minute}))
	dead, healthy := keyAt(t, w, c, nobody), keyAt(t, w, c, addr)
	for i := range 20 {
		both := w.post(t, fmt.Sprintf(`{"checks":[{"key":%q},{"key":%q}]}`, dead, healthy))
		if both.status != 200 || !strings.Contains(both.text, `"source":"policy"`) {
			t.Fatalf("both, %d: %s", i, both.text)
		}
	}
	if alone := w.get(t, healthy); alone.str("source") != "redis" {
		t.Errorf("after checks that named a dead shard too, the healthy one is answered by policy: %s", alone.text)
	}
	if used := w.used(t, healthy); used != 1 {
		t.Errorf("%d of the healthy key used, want 1: what was decided by policy charges nothing", used)
	}
}

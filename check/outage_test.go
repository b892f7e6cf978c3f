package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// timelines is how many timelines each property is tried on; -rapid.checks says otherwise.
var timelines = "30"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", timelines); err != nil {
		panic(err)
	}
	streamtest.Main(m)
}

// An outage is logged once, with what on_error does, and its end with what on_error did. A second outage is logged
// again.
func TestAnOutageIsToldOnce(t *testing.T) {
	server := streamtest.OwnRedis(t)
	ruleOf := func(name string, o windows.OnError) *windows.Rule {
		return &windows.Rule{Name: name, Match: name + ":*", OnError: o, Shadow: name == "shadow",
			Windows: []windows.Window{{Limit: 1, Per: time.Hour}}}
	}
	var out bytes.Buffer // the checks of this test come one after the other
	s := newService(t, streamtest.Connect(t, server.Addr()), Config{Timeout: time.Second,
		Log: slog.New(slog.NewJSONHandler(&out, nil))}, ruleOf("allow", windows.OnErrorAllow),
		ruleOf("allow2", windows.OnErrorAllow), ruleOf("deny", windows.OnErrorDeny),
		ruleOf("local", windows.OnErrorLocal), ruleOf("shadow", windows.OnErrorDeny))
	ask := func(key string) api.Source {
		asks := []counters.Request{{Plan: s.config.Rules().Match(key), Key: key, Cost: 1}}
		return s.decide(t.Context(), &call{asks: asks}).source
	}
	lines := func(want int) map[string]any {
		t.Helper()
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		if out.Len() == 0 && want == 0 {
			return nil
		}
		if len(got) != want {
			t.Fatalf("%d lines, want %d:\n%s", len(got), want, out.String())
		}
		last := map[string]any{}
		testkit.Must(t, json.Unmarshal([]byte(got[want-1]), &last))
		return last
	}
	for outages := range 2 {
		if ask("allow:1") != api.SourceRedis {
			t.Fatal("Redis does not answer")
		}
		lines(2 * outages)
		server.Stop()
		for i := range 20 {
			ask([]string{"allow:1", "deny:1", "local:1", "shadow:1"}[i%4])
		}
		began := lines(2*outages + 1)
		if began["rules_allow"] != 2.0 || began["rules_deny"] != 1.0 || began["rules_local"] != 1.0 ||
			began["level"] != "ERROR" || began["error"] == nil {
			t.Errorf("the beginning: %v", began)
		}
		if since, checks := s.Outage(t.Context()); since.IsZero() || checks[windows.OnErrorDeny] != 5 {
			t.Errorf("on_error decides since %v: %v", since, checks)
		}
		server.Start()
		asked := 5 // of allow:1, and five of shadow:1, which passes as well
		streamtest.Eventually(t, 10*time.Second, "Redis answers", func() (bool, string) {
			if ask("allow:1") == api.SourceRedis {
				return true, ""
			}
			asked++
			return false, ""
		})
		ended := lines(2*outages + 2)
		if ended["checks_allow"] != float64(asked+5) || ended["checks_deny"] != 5.0 || ended["checks_local"] != 5.0 ||
			ended["took"] == nil {
			t.Errorf("the end, after %d checks: %v", asked, ended)
		}
		if since, _ := s.Outage(t.Context()); !since.IsZero() {
			t.Errorf("on_error still decides, since %v", since)
		}
	}
}

// Outage reports the end of an outage even if no check comes after it. It does not report the end while Redis answers
// reads and refuses writes.
func TestAnOutageEndsWithoutChecks(t *testing.T) {
	server := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, server.Addr())
	s := newService(t, c, Config{Timeout: time.Second, Log: slog.New(slog.DiscardHandler)}, &windows.Rule{Name: "api",
		Match: "*", OnError: windows.OnErrorAllow, Windows: []windows.Window{{Limit: 1, Per: time.Hour}}})
	s.outage.after = func(_ time.Duration, f func()) { time.AfterFunc(0, f) }
	ask := func(key string) {
		asks := []counters.Request{{Plan: s.config.Rules().Match(key), Key: key, Cost: 1}}
		s.decide(t.Context(), &call{asks: asks})
	}
	over := func(want bool) {
		t.Helper()
		streamtest.Eventually(t, 10*time.Second, "the outage is known", func() (bool, string) {
			since, checks := s.Outage(t.Context())
			return since.IsZero() == want, fmt.Sprint(since, checks)
		})
	}
	ask("k1") // the library is there
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
	ask("k2")
	over(false)
	testkit.Must(t, c.Ping(t.Context()).Err())
	over(false)
	testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", "0").Err())
	over(true)
	if st, err := s.Peek(t.Context(), "k2"); err != nil || st.Windows[0].Used != 0 {
		t.Errorf("%+v, %v: the question about the outage was charged", st, err)
	}

	server.Stop()
	for range 6 { // the breaker opens
		ask("k3")
	}
	over(false)
	server.Start()
	over(true)
}

// One check that fails is logged too, if Redis answers no other check within a second: a process with little to do
// opens no breaker. A slow answer among good ones is no outage.
func TestAnOutageOfFewChecksIsTold(t *testing.T) {
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "*",
		Windows: []windows.Window{{Limit: 1, Per: time.Hour}}}})
	testkit.Must(t, err)
	var out bytes.Buffer
	o := newOutage(slog.New(slog.NewJSONHandler(&out, nil)), windows.Fixed(rules).Rules)
	var later []func()
	o.after = func(d time.Duration, f func()) {
		if d != outageAfter {
			t.Errorf("it waits for %v", d)
		}
		later = append(later, f)
	}
	said := func(want ...string) {
		t.Helper()
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		if out.Len() == 0 {
			got = nil
		}
		if len(got) != len(want) {
			t.Fatalf("%d lines, expected %q:\n%s", len(got), want, out.String())
		}
		for i, part := range want {
			if !strings.Contains(got[i], part) {
				t.Errorf("line %d is %s, expected %q in it", i, got[i], part)
			}
		}
		out.Reset()
	}
	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away")) // a slow answer
	o.byRedis()
	later[0]()
	said()

	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away"))
	later[0]() // of the failure before
	said()
	later[1]()
	said("on_error does until")
	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 2), errors.New("away"))
	o.changed(0, gobreaker.StateOpen, nil) // no second line
	o.byRedis()                            // of another shard
	said()
	o.changed(0, gobreaker.StateClosed, nil)
	said(`"checks_allow":3`)
	o.byRedis()
	said()

	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away"))
	later[2]()
	o.byRedis()
	said("on_error does until", `"checks_allow":1`)
	if len(later) != 3 {
		t.Errorf("%d timers, expected one for each failure that followed an answer", len(later))
	}
}

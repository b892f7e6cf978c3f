package check

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sony/gobreaker/v2"

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

// An outage begins and ends without further checks. It does not begin if Redis answers again, and does not end while
// Redis answers reads and refuses writes.
func TestAnOutageNeedsNoChecks(t *testing.T) {
	server := streamtest.OwnRedis(t)
	c := streamtest.Connect(t, server.Addr())
	s := newService(t, c, Config{Timeout: time.Second, Log: slog.New(slog.DiscardHandler)}, &windows.Rule{Name: "api",
		Match: "*", OnError: windows.OnErrorAllow, Windows: []windows.Window{{Limit: 1, Per: time.Hour}}})
	var timer func()
	s.outage.after = func(_ time.Duration, f func()) { timer = f }
	ask := func(key string) {
		asks := []counters.Request{{Plan: s.config.Rules().Match(key), Key: key, Cost: 1}}
		s.decide(t.Context(), &call{asks: asks})
	}
	memory := func(bytes string) { testkit.Must(t, c.ConfigSet(t.Context(), "maxmemory", bytes).Err()) }
	later := func(want map[windows.OnError]int) {
		t.Helper()
		streamtest.Eventually(t, fmt.Sprint("an outage with ", want), func() (bool, string) {
			do := timer
			timer = nil
			do()
			since, checks := s.Outage()
			over := want == nil
			good := since.IsZero() == over && maps.Equal(checks, want) && (timer == nil) == over
			return good, fmt.Sprint(since, checks)
		})
	}
	ask("k1") // the library is there
	memory("1")
	ask("k2")
	memory("0")
	later(nil)
	memory("1")
	ask("k2")
	later(map[windows.OnError]int{windows.OnErrorAllow: 1})
	testkit.Must(t, c.Ping(t.Context()).Err())
	later(map[windows.OnError]int{windows.OnErrorAllow: 1})
	memory("0")
	later(nil)
	if st, err := s.Peek(t.Context(), "k2"); err != nil || st.Windows[0].Used != 0 {
		t.Errorf("%+v, %v: the question about the outage was charged", st, err)
	}

	server.Stop()
	for range 6 { // the breaker opens
		ask("k3")
	}
	later(map[windows.OnError]int{windows.OnErrorAllow: 6})
	server.Start()
	later(nil)
}

// An outage is logged once, with what on_error does, and its end with what on_error did. A second outage is logged
// again. One check that fails is logged too, if Redis answers nothing within a second: a process with little to do
// opens no breaker. One slow answer is no outage, whether or not another check comes.
func TestAnOutageIsToldOnce(t *testing.T) {
	var rules []*windows.Rule
	for name, policy := range map[string]windows.OnError{"a": windows.OnErrorAllow, "b": windows.OnErrorAllow,
		"deny": windows.OnErrorDeny, "local": windows.OnErrorLocal, "shadow": windows.OnErrorDeny} {
		rules = append(rules, &windows.Rule{Name: name, Match: name + ":*", OnError: policy, Shadow: name == "shadow",
			Windows: []windows.Window{{Limit: 1, Per: time.Hour}}})
	}
	var out bytes.Buffer
	o := newOutage(slog.New(slog.NewJSONHandler(&out, nil)), windows.Fixed(rulesOf(t, rules...)).Rules)
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
			for part := range strings.SplitSeq(part, " and ") {
				if !strings.Contains(got[i], part) {
					t.Errorf("line %d is %s, expected %q in it", i, got[i], part)
				}
			}
		}
		out.Reset()
	}
	answers := true
	o.ask = func(counters.Request) {
		if answers {
			o.byRedis()
		}
	}
	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away")) // a slow answer, then silence
	later[0]()
	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away")) // another check comes
	o.byRedis()
	later[1]()
	said()

	answers = false
	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away"))
	later[0]() // of a failure before
	said()
	later[2]()
	said(`"level":"ERROR" and "error":"away","rules_allow":2,"rules_deny":1,"rules_local":1`)
	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 2), errors.New("away"))
	o.byPolicy(windows.OnErrorDeny, make([]counters.Request, 4), errors.New("away"))
	o.changed(0, gobreaker.StateOpen, nil) // no second line
	o.byRedis()                            // of another shard
	said()
	o.changed(0, gobreaker.StateClosed, nil)
	said(`"took": and "checks_allow":3,"checks_deny":4,"checks_local":0`)
	o.byRedis()
	said()

	o.byPolicy(windows.OnErrorAllow, make([]counters.Request, 1), streamtest.Refusal("WRONGTYPE of a key"))
	said(`"level":"ERROR" and "key":"\"\"" and "error":"WRONGTYPE of a key"`)
	later[4]()
	o.byRedis()
	said("on_error does until", `"checks_allow":1`)
	later[5]()
	said()
	if len(later) != 6 {
		t.Errorf("%d timers, expected one for each failure that followed an answer, and two of outages", len(later))
	}
}

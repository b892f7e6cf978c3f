package check

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
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
		requests := []counters.Request{{Plan: s.config.Rules().Match(key), Key: key, Cost: 1}}
		s.decide(t.Context(), &call{byKey: requests})
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
	o.probe = func(counters.Request) {
		if answers {
			o.redisAnswered()
		}
	}
	o.decidedByPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away")) // slow, then silence
	later[0]()
	o.decidedByPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away")) // another check comes
	o.redisAnswered()
	later[1]()
	said()

	answers = false
	o.decidedByPolicy(windows.OnErrorAllow, make([]counters.Request, 1), errors.New("away"))
	later[0]() // of a failure before
	said()
	later[2]()
	said(`"level":"ERROR" and "error":"away","rules_allow":2,"rules_deny":1,"rules_local":1`)
	o.decidedByPolicy(windows.OnErrorAllow, make([]counters.Request, 2), errors.New("away"))
	o.decidedByPolicy(windows.OnErrorDeny, make([]counters.Request, 4), errors.New("away"))
	o.changed(0, gobreaker.StateOpen, nil) // no second line
	o.redisAnswered()                      // of another shard
	said()
	o.changed(0, gobreaker.StateClosed, nil)
	said(`"took": and "checks_allow":3,"checks_deny":4,"checks_local":0`)
	o.redisAnswered()
	said()

	o.decidedByPolicy(windows.OnErrorAllow, make([]counters.Request, 1), streamtest.Refusal("WRONGTYPE of a key"))
	said(`"level":"ERROR","msg":"Redis refuses a check and "key":"\"\"" and "error":"WRONGTYPE of a key"`)
	later[4]()
	o.redisAnswered()
	said("on_error does until", `"checks_allow":1`)
	later[5]()
	said()
	if len(later) != 6 {
		t.Errorf("%d timers, expected one for each failure that followed an answer, and two of outages", len(later))
	}
}

var localRule = &windows.Rule{Name: "local", Match: "*", OnError: windows.OnErrorLocal,
	Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}

// While Redis is away, a server counts alone, and its memory does not grow with the keys that are asked for.
func TestLocalCountsAreBounded(t *testing.T) {
	s := newService(t, streamtest.Connect(t, "127.0.0.1:1"), Config{}, localRule)
	const many = maxLocalKeys + 1000
	reqs := make([]api.CheckRequest, many)
	for i := range reqs {
		reqs[i] = api.CheckRequest{Key: fmt.Sprint("local:", i), Cost: 1}
	}
	for i, e := range s.CheckEach(t.Context(), reqs) {
		if e.Err != nil || !e.Allowed || e.Source != api.SourceLocal {
			t.Fatalf("%s: %+v, %v, want it allowed by this process", reqs[i].Key, e.CheckAnswer, e.Err)
		}
	}
	if n := s.local.Len(); n != maxLocalKeys {
		t.Errorf("%d keys are held after %d, want %d", n, many, maxLocalKeys)
	}
}

// While Redis is away, each of several servers admits its share of the limit, as the client's Local does.
func TestLocalCountsItsShare(t *testing.T) {
	s := newService(t, streamtest.Connect(t, "127.0.0.1:1"), Config{Instances: 4}, localRule)
	for i, want := range []struct {
		cost    int64
		allowed bool
		note    string
	}{{1, true, ""}, {3, false, "the cost 3 is above this process's share of the limit, one of 4"}, {1, true, ""},
		{1, false, ""}} {
		a, err := s.Check(t.Context(), api.CheckRequest{Key: "k", Cost: want.cost})
		if err != nil || a.Allowed != want.allowed || a.Source != api.SourceLocal || a.Windows[0].Limit != 2 ||
			a.Note != want.note || (a.RetryAfterMs > 0) != (!a.Allowed && a.Note == "") {
			t.Errorf("%d: %+v, %v", i, a, err)
		}
	}
	all, err := s.CheckAll(t.Context(), []api.CheckRequest{{Key: "k"}, {Key: "l", Cost: 3}})
	if err != nil || all.RetryAfterMs != 0 || all.Checks[0].RetryAfterMs == 0 {
		t.Errorf("%+v, %v, want no wait", all, err)
	}
	config := s.config
	config.Instances = -1
	if _, err := NewService(config); err == nil {
		t.Error("Instances -1: no error")
	}
}

// hurried is a context whose deadline passes before its timer fires.
type hurried struct {
	context.Context
	late bool
}

func (h *hurried) Deadline() (time.Time, bool) { return time.Now(), h.late }

// A caller that leaves Redis no time, or that goes away, does not open the breaker for the others. Nor does a refusal
// by Redis.
func TestHurriedCallersOpenNoBreaker(t *testing.T) {
	h := newShard(Config{Timeout: 10 * time.Second}, func(gobreaker.State, error) {}, nil)
	slow := errors.New("i/o timeout")
	ended, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for _, c := range []struct {
		ctx      context.Context
		harmless error
	}{{ended, context.DeadlineExceeded}, {t.Context(), context.Canceled},
		{t.Context(), streamtest.Refusal("WRONGTYPE")}} {
		for range 20 {
			ctx, leave := context.WithCancel(t.Context())
			hurried := &hurried{Context: t.Context()}
			for _, err := range []error{
				h.execute(ctx, func() error { leave(); return slow }),
				h.execute(hurried, func() error { hurried.late = true; return slow }),
			} {
				if !errors.Is(err, slow) {
					t.Fatalf("error %v of a caller that left: the breaker is open", err)
				}
			}
			if err := h.execute(c.ctx, func() error { return c.harmless }); !errors.Is(err, c.harmless) {
				t.Fatalf("error %v after %v: the breaker is open", err, c.harmless)
			}
		}
	}
	for range 5 {
		_ = h.execute(t.Context(), func() error { return slow })
	}
	err := h.execute(t.Context(), func() error { return slow })
	if !errors.Is(err, api.ErrNotSent) {
		t.Errorf("error %v after five failures, want an open breaker", err)
	}
}

package counters_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/overrides"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// operators is two processes with overrides over the same keys.
type operators struct {
	*store
	a, b *overrides.All
}

func newOperators(s *store) *operators {
	s.t.Helper()
	s.rules = rulesOf(s.t, &windows.Rule{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}}},
		&windows.Rule{Name: "gold", Windows: []windows.Window{{Limit: 100, Per: time.Minute}}})
	o := &operators{store: s}
	o.a, o.b = o.process(), o.process()
	return o
}

func (o *operators) process() *overrides.All {
	all := o.serve.NewOverrides(nil)
	testkit.Must(o.t, all.Poll(context.Background()))
	return all
}

func (o *operators) set(key string, one api.Override, lasts time.Duration) {
	o.t.Helper()
	one.Key = key
	_, err := o.a.Set(context.Background(), o.rules.ValidateOverride, one, lasts)
	testkit.Must(o.t, err)
}

// same expects that both processes, and a process that starts now, have the same overrides for keys.
func (o *operators) same(keys ...string) {
	o.t.Helper()
	testkit.Must(o.t, o.b.Poll(context.Background()))
	fresh := o.process()
	for _, key := range keys {
		want := text(o.a.Find(key))
		for name, all := range map[string]*overrides.All{"follows": o.b, "has just started": fresh} {
			if got := text(all.Find(key)); got != want {
				o.t.Errorf("%s: the process that %s has %s, the one that set it %s", key, name, got, want)
			}
		}
	}
	if o.a.Len() != o.b.Len() || o.a.Len() != fresh.Len() {
		o.t.Errorf("%d, %d and %d overrides", o.a.Len(), o.b.Len(), fresh.Len())
	}
}

func text(o *overrides.Override) string {
	if o == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", o.API())
}

func TestOverridesAreFollowed(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		ctx, c, o := t.Context(), s.redis, newOperators(s)
		var told []string
		o.b.OnChange(func(targets []string) { told = append(told, targets...) })
		var keys []string
		for i := range 40 {
			keys = append(keys, fmt.Sprint("user:", i))
		}
		for i, key := range keys {
			o.set(key, []api.Override{{Block: true}, {Exempt: true}, {Rule: "gold"},
				{Windows: []api.OverrideWindow{{Limit: 5, Per: "1m"}}}}[i%4], 0)
		}
		o.same(keys...)
		if slices.Sort(told); len(told) != 40 {
			t.Errorf("told of %d changes: %q", len(told), told)
		}
		for _, key := range keys[:20] {
			_, err := o.a.Clear(ctx, key, "", "", "")
			testkit.Must(t, err)
		}
		o.same(keys...)

		// A change in the middle that is not in the stream (any more) is also noticed.
		p := o.keys.Partition("user:30")
		o.set("user:30", api.Override{Block: true}, 0)
		lost, err := c.XRevRangeN(ctx, o.keys.Audit(p), "+", "-", 1).Result()
		testkit.Must(t, err)
		for _, key := range keys {
			if o.keys.Partition(key) == p && key != "user:30" {
				o.set(key, api.Override{Exempt: true}, 0)
			}
		}
		testkit.Must(t, c.XDel(ctx, o.keys.Audit(p), lost[0].ID).Err())
		o.same(keys...)

		// A process that missed changes that were trimmed reads all overrides again, and so does one after a
		// failover that lost changes.
		o.set("user:1", api.Override{Block: true}, 0)
		o.set("user:2", api.Override{Block: true}, 0)
		for p := range 4 {
			testkit.Must(t, c.XTrimMaxLen(ctx, o.keys.Audit(p), 0).Err())
		}
		o.same(keys...)
		p = o.keys.Partition("user:1")
		testkit.Must(t, c.HDel(ctx, o.keys.Overrides(p), "user:1").Err())
		testkit.Must(t, c.HSet(ctx, o.keys.Overrides(p), "\nversion", "7-1").Err())
		testkit.Must(t, o.a.Poll(ctx))
		if o.a.Find("user:1") != nil {
			t.Error("a lost override stands")
		}
		o.same(keys...)

		// Foreign data is ignored.
		testkit.Must(t, c.HSet(ctx, o.keys.Overrides(p), "user:1", "{", "user:5", `{"block":true,"exempt":true}`,
			"user:6", `{"windows":[{"limit":-1,"per":"1m"}]}`, "\nversion", "8-1").Err())
		testkit.Must(t, o.a.Poll(ctx))
		for _, key := range []string{"user:1", "user:5", "user:6"} {
			if p == o.keys.Partition(key) && o.a.Find(key) != nil {
				t.Errorf("%s: %s", key, text(o.a.Find(key)))
			}
		}
		o.same(keys...)
	})
}

// An override ends at its millisecond in every process, even if no worker runs. Then the plan is
// that of the rules again, the same pointer.
func TestAnOverrideEndsAtItsMillisecond(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		o := newOperators(s)
		rules := o.rules.With(o.b)
		before := rules.Match("user:1")
		o.set("user:1", api.Override{Rule: "gold"}, time.Hour)
		testkit.Must(t, o.b.Poll(t.Context()))
		under := rules.Match("user:1")
		if under.Name() != "gold" || rules.Match("user:1") != under || rules.Match("user:2") != before {
			t.Errorf("under the override: %s", under.Name())
		}
		o.set("user:3", api.Override{Block: true}, time.Hour)
		said, err := s.redis.XRange(t.Context(), o.keys.Outbox(o.keys.Partition("user:3")), "-", "+").Result()
		testkit.Must(t, err)
		if got := said[0].Values["expires"]; got != fmt.Sprint(o.clock.ms+time.Hour.Milliseconds()+5000) {
			t.Errorf("a subscriber that hears nothing more ends a block at %v, want 5 s after its end", got)
		}
		o.clock.ms += time.Hour.Milliseconds() - 1
		if rules.Match("user:1") != under {
			t.Error("it ended too early")
		}
		o.clock.ms++
		if rules.Match("user:1") != before {
			t.Error("it did not end")
		}
	})
}

// Folds and sweeps treat the keys of a blocked network like those of a blocked pattern, and all processes have the
// same networks.
func TestNetworksAreFollowed(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		o := newOperators(s)
		blocked := func() (list []string) {
			keys := []string{"ip:10.0.0.1", "ip:10.1.0.1", "ip:10.1.2.3", "net:10.1.0.1", "ip:fd00::1",
				"ip:fd00:1::/64", "ip:f000::/4", "ip:fe00::/64"}
			for _, key := range keys {
				if o.rules.With(o.a).Overrides().BlockedByPattern(key) {
					list = append(list, key)
				}
			}
			o.same(keys...)
			return list
		}
		for _, network := range []string{"ip:10.0.0.0/8", "ip:fd00::/8", "net:10.0.0.0/8"} {
			_, err := o.a.Set(t.Context(), o.rules.ValidateOverride, api.Override{Network: network, Block: true}, 0)
			testkit.Must(t, err)
		}
		_, err := o.a.Set(t.Context(), o.rules.ValidateOverride,
			api.Override{Network: "ip:10.1.0.0/16", Exempt: true}, time.Second)
		testkit.Must(t, err)
		o.set("ip:10.0.0.1", api.Override{Block: true}, 0) // an override of the key itself
		if got := blocked(); !slices.Equal(got, []string{"net:10.1.0.1", "ip:fd00::1", "ip:fd00:1::/64"}) {
			t.Errorf("blocked by a network are %q", got)
		}
		o.clock.ms += 1000
		_, err = o.a.Clear(t.Context(), "", "ip:fd00::/8", "", "")
		testkit.Must(t, err)
		if got := blocked(); !slices.Equal(got, []string{"ip:10.1.0.1", "ip:10.1.2.3", "net:10.1.0.1"}) {
			t.Errorf("after the exemption, and without fd00::/8, blocked by a network are %q", got)
		}
		fits := overrides.Matcher("\nip:10.0.0.0/8")
		if !fits("ip:10.9.9.9") || fits("ip:11.0.0.1") || fits("ip:10.x") || overrides.Matcher("ip:10.0.0.0/8") != nil {
			t.Error("the matcher of a network")
		}
	})
}

// The cost of a check of a key that is in no network, with no networks and with 1,000 networks.
func BenchmarkNetworks(b *testing.B) {
	for _, n := range []int{0, 1000} {
		o := newOperators(redisStore(b, streamtest.Redis(b), nil))
		o.set("user:other", api.Override{Block: true}, 0)
		for i := range n {
			_, err := o.a.Set(b.Context(), o.rules.ValidateOverride, api.Override{Block: true,
				Network: fmt.Sprintf("ip:10.%d.%d.0/24", i/250, i%250)}, 0)
			testkit.Must(b, err)
		}
		rules := o.rules.With(o.a)
		for _, key := range []string{"user:42", "ip:192.0.2.1", "ip:10.0.7.1"} {
			b.Run(fmt.Sprintf("%d/%s", n, key), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					rules.Match(key)
				}
			})
		}
	}
}

// The end of an override with a duration is computed from Redis's clock at the moment when it is
// set, even if that clock stepped just before.
func TestAnOverrideLastsByRedissClock(t *testing.T) {
	server, clock := streamtest.OwnRedisWithClock(t)
	if clock == nil {
		t.Skip("no Redis with a clock of its own")
	}
	ctx, c := context.Background(), streamtest.Connect(t, server.Addr())
	keys, err := stream.NewKeys("sc", 4)
	testkit.Must(t, err)
	rules, err := windows.NewRules([]*windows.Rule{{Name: "api", Match: "user:*",
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}})
	testkit.Must(t, err)
	all := counters.New(c, keys).NewOverrides(nil)
	testkit.Must(t, all.Poll(ctx))
	testkit.Must(t, all.Poll(ctx)) // it knows the clock as it was
	var late func()                // once, before the next script runs
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if late != nil && streamtest.IsScript(cmd) {
			late()
			late = nil
		}
		return next(ctx, cmd)
	}))
	for i, step := range []time.Duration{-time.Hour, time.Hour, -2 * time.Hour, 2 * time.Hour} {
		if i < 2 {
			clock.Set(step)
		} else { // after the clock was read, and before it is set
			late = func() { clock.Set(step) }
		}
		set, err := all.Set(ctx, rules.ValidateOverride, api.Override{Key: "user:1", Block: true}, time.Minute)
		testkit.Must(t, err)
		now, err := c.Time(ctx).Result()
		testkit.Must(t, err)
		if left := time.UnixMilli(set.UntilMs).Sub(now); left > time.Minute+time.Second || left < 0 {
			t.Errorf("stepped by %v: it ends in %v by Redis's clock, want a minute", step, left)
		}
	}
}

// If Redis takes longer to answer than an override lasts, the override's end is computed again, and it is set.
func TestAShortOverrideIsSetByASlowRedis(t *testing.T) {
	eachRedis(t, rulesOf(t, apiRule(nil)), func(t *testing.T, s *store) {
		asked := 0
		s.serve.Now = func() int64 { // by Set, and then by the script
			if asked++; asked == 2 {
				s.clock.ms += 900
			}
			return s.clock.ms
		}
		set, err := s.serve.NewOverrides(nil).Set(t.Context(), s.rules.ValidateOverride,
			api.Override{Key: "k", Block: true}, 500*time.Millisecond)
		if left := set.UntilMs - s.clock.ms; err != nil || left != 500 {
			t.Errorf("it ends in %d ms, %v", left, err)
		}
	})
}

// load sets the rules of a file, as a reload does.
func (s *store) load(yaml string) {
	s.t.Helper()
	s.rules = parsed(s.t, "rules:\n"+yaml)
	testkit.Must(s.t, s.learn())
}

package windows_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// quickRule has levels at 8 and 10 units.
func quickRule() *windows.Rule {
	return &windows.Rule{Name: "api", Match: "*", Alerts: []int{80},
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}, {Limit: 100, Per: time.Hour}}}
}

// The common check is answered by the quick script: every one below the levels, in runs of
// one and of many. Others are left to the general one, and then at once.
func TestTheCommonCheckIsQuick(t *testing.T) {
	eachRedis(t, rulesOf(t, quickRule()), func(t *testing.T, s *store) {
		plan := planOf(s.rules)
		quick := int64(0)
		ask := func(more int64, calls ...[]windows.Request) []windows.Verdict {
			t.Helper()
			got, err := s.serve.CheckMany(t.Context(), calls)
			testkit.Must(t, err)
			if n := s.serve.AnsweredQuick() - quick; n != more {
				t.Errorf("%d calls answered quickly, want %d", n, more)
			}
			quick = s.serve.AnsweredQuick()
			return got
		}
		one := func(key string, cost int64) []windows.Request {
			return []windows.Request{{Plan: plan, Key: key, Cost: cost}}
		}
		for i := range 7 {
			v := ask(1, one("a", 1))[0]
			if !v.Allowed || !v.Atomic || v.Items[0].Windows[0].Used != int64(i+1) {
				t.Errorf("check %d: %+v", i, v)
			}
		}
		ask(0, one("a", 1)) // reaches 80 %
		ask(0, one("a", 1)) // and is known to be there
		got := ask(4, one("b", 3), one("a", 1), one("c", 1), one("b", 2), one("d", 2))
		for i, want := range []int64{3, 10, 1, 5, 2} {
			if used := got[i].Items[0].Windows[0].Used; !got[i].Allowed || used != want {
				t.Errorf("call %d: %d used, want %d", i, used, want)
			}
		}
		ask(1, one("b", 2), one("b", 0), one("b", 0))            // a look is for the general one
		ask(2, one("c", 1), append(one("e", 1), one("d", 1)...)) // a call of two keys
		ask(1, one("c", 1), append(one("e", 1), one("b", 1)...)) // b reaches 80 %
		ask(2, append(one("f", 1), one("f", 1)...), append(one("e", 1), one("f", 1)...))
		// What has a key in common with a call that is left.
		got = ask(1, one("h", 1), append(one("g", 1), one("h", 7)...), one("g", 1), one("i", 1))
		for i, want := range []int64{1, 1, 2, 1} {
			if used := got[i].Items[0].Windows[0].Used; !got[i].Allowed || used != want {
				t.Errorf("call %d: %d used, want %d", i, used, want)
			}
		}
		if v, err := s.serve.CheckMany(t.Context(), [][]windows.Request{one("c", 1<<56)}); err == nil {
			t.Errorf("2^56 units, more than the script's arguments take: %+v", v)
		}
		s.clock.ms += 61_000
		ask(0, one("a", 1)) // finds that it is near no more
		ask(1, one("a", 1))
		s.clock.ms += 3_661_000
		got = ask(1, append(one("c", 1), one("d", 2)...)) // what has left every window is gone
		for i, want := range []int64{1, 2} {
			state, key := got[0].Items[i].Windows[1], "cd"[i:i+1]
			entries := s.redis.XLen(t.Context(), s.keys.Counter(s.keys.Partition(key), "log", key)).Val()
			if state.Used != want || entries != 1 {
				t.Errorf("key %s: %+v, %d entries", key, state, entries)
			}
		}
	})
}

// Calls of several keys are answered by the quick script as by the general one, all or nothing,
// whatever was done to the counters meanwhile.
func TestQuickCallsOfSeveralKeys(t *testing.T) {
	rules := append(quickFoldRules(t).List(), &windows.Rule{Name: "packed", Match: "packed/*", Algorithm: packed,
		Hold: time.Second, Windows: []windows.Window{{Limit: 40, Per: 2 * time.Second}}})
	eachRedis(t, rulesOf(t, rules...), func(t *testing.T, s *store) {
		other := s.twin(t)
		other.serve.LeaveToGeneral(true)
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random, several := rand.New(rand.NewPCG(seed, 0)), 0
		for n := range 600 {
			s.clock.ms += random.Int64N(60)
			full := "" // a key whose log looks healthy and takes no more IDs
			if n%5 == 0 {
				key := []string{"far/", "two/"}[random.IntN(2)] + fmt.Sprint(random.IntN(6))
				// Not the newest entry: the general script may make one of two.
				what := []int{0, 2, 3, 4}[random.IntN(4)]
				for _, s := range []*store{s, other} {
					s.meddle(t, what, key, n)
					if what == 2 && n%2 == 0 {
						full = key
						counter := s.keys.Counter(s.keys.Partition(key), "log", key)
						_ = s.redis.XDel(t.Context(), counter, "18446744073709551615-18446744073709551615").Err()
					}
				}
			}
			form := []string{"far/", "far/", "two/", "packed/"}[random.IntN(4)]
			calls := make([][]windows.Request, 1+random.IntN(4))
			for i := range calls {
				for range 1 + random.IntN(4) {
					if random.IntN(9) == 0 {
						form = []string{"far/", "two/", "packed/", "b/"}[random.IntN(4)]
					}
					key := form + fmt.Sprint(random.IntN(6))
					ask := windows.Request{Plan: s.rules.Match(key), Key: key, Cost: 1 + random.Int64N(2)}
					calls[i] = append(calls[i], ask)
				}
			}
			if full != "" {
				calls = calls[:1]
				calls[0] = []windows.Request{{Plan: s.rules.Match("far/x"), Key: "far/x", Cost: 1},
					{Plan: s.rules.Match(full), Key: full, Cost: 1}}
				if random.IntN(2) == 0 {
					slices.Reverse(calls[0])
				}
			}
			ordered, got, quick, err := s.serve.CheckInOrder(t.Context(), calls)
			testkit.Must(t, err)
			var want []windows.Verdict
			for i := range ordered[:quick] {
				one, err := other.serve.CheckMany(t.Context(), ordered[i:i+1])
				testkit.Must(t, err)
				want = append(want, one...)
				several += min(1, len(ordered[i])-1)
			}
			if quick < len(ordered) {
				others, err := other.serve.CheckMany(t.Context(), ordered[quick:])
				testkit.Must(t, err)
				want = append(want, others...)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("run %d, of %d calls: the quick one (+) answers something else:\n%s", n, len(calls), diff)
			}
			if full != "" && s.redis.PTTL(t.Context(), s.keys.Counter(s.keys.Partition(full), "log", full)).Val() < 0 {
				t.Fatalf("run %d: %s has no expiry", n, full)
			}
		}
		if several < 100 {
			t.Errorf("%d calls of several keys were answered quickly: this proves too little", several)
		}
	})
}

// Rules of one algorithm may have windows of another: the script asked is that of the windows.
func TestQuickChecksGoByTheAlgorithmOfTheWindows(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		tale{t, s}.rules("  - {name: a, match: 'a*', windows: [{limit: 50, per: 3s}]}\n" +
			"  - {name: b, match: 'b*', windows: [{limit: 50, per: 3s, algorithm: sliding-log-packed}]}")
		one := func(key string) []windows.Request {
			return []windows.Request{{Plan: s.rules.Match(key), Key: key, Cost: 1}}
		}
		for n := range int64(20) {
			both := append(one("a2"), one("b2")...)
			got, err := s.serve.CheckMany(t.Context(), [][]windows.Request{one("a"), one("b"), both})
			testkit.Must(t, err)
			for i, v := range got {
				if used := v.Items[len(v.Items)-1].Windows[0].Used; used != n+1 {
					t.Errorf("call %d: %d used, want %d", i, used, n+1)
				}
			}
			for _, key := range []string{"a", "a2", "b", "b2"} {
				form, want := "log", "stream"
				if key[0] == 'b' {
					form, want = "packed", "string"
				}
				counter := s.keys.Counter(s.keys.Partition(key), form, key)
				if kind := s.redis.Type(t.Context(), counter).Val(); kind != want {
					t.Fatalf("%s is a %s", counter, kind)
				}
			}
			s.clock.ms++
		}
	})
}

// A key whose log is not for the quick script keeps the calls of several keys that have it from being asked for
// in vain, until it is found to be fit again.
func TestAnUnfitKeyIsRemembered(t *testing.T) {
	rules := rulesOf(t, &windows.Rule{Name: "packed", Match: "packed/*", Algorithm: packed,
		Windows: []windows.Window{{Limit: 1000, Per: time.Second}}},
		&windows.Rule{Name: "log", Match: "*", Windows: []windows.Window{{Limit: 1000, Per: time.Second}}})
	eachRedis(t, rules, func(t *testing.T, s *store) {
		for _, prefix := range []string{"packed/", "log/"} {
			ask := func(names ...string) (call []windows.Request) {
				for _, name := range names {
					call = append(call, windows.Request{Plan: s.rules.Match(prefix), Key: prefix + name, Cost: 1})
				}
				return call
			}
			ctx, held := t.Context(), ask("held")
			_, err := s.serve.Reserve(ctx, s.serve.ReservationID("x"+prefix[:3], held), time.Second, "x", held)
			testkit.Must(t, err)
			v, err := s.serve.CheckMany(ctx, [][]windows.Request{ask("a", "held", "b"), ask("c", "d")})
			testkit.Must(t, err)
			if used := v[0].Items[1].Windows[0].Used; used != 2 || s.serve.AnsweredQuick() == 0 {
				t.Errorf("%d used, want 2; %d calls were answered quickly", used, s.serve.AnsweredQuick())
			}
			for _, name := range []string{"a", "held", "b", "c", "d"} {
				if unfit := s.serve.IsUnfit(held[0].Plan, prefix+name); unfit != (name == "held") {
					t.Errorf("%s%s: unfit is %t", prefix, name, unfit)
				}
			}
			s.clock.ms += 5000
			before, tries := s.serve.AnsweredQuick(), 0
			for ; s.serve.AnsweredQuick() == before && tries < 500; tries++ { // one in eight
				_, err := s.serve.Check(ctx, ask("a", "held"))
				testkit.Must(t, err)
			}
			if tries == 500 {
				t.Error("a key that is fit again is never found to be")
			}
		}
	})
}

// Where the general script is refused, the calls that were answered stay answered: whoever
// asked them again would charge twice.
func TestARefusalLeavesWhatWasAnswered(t *testing.T) {
	eachRedis(t, rulesOf(t, quickRule()), func(t *testing.T, s *store) {
		plan, ctx := planOf(s.rules), t.Context()
		calls := [][]windows.Request{}
		for i := range 20 {
			calls = append(calls, []windows.Request{{Plan: plan, Key: fmt.Sprint("k", i), Cost: 1}})
		}
		calls[3][0].Cost = 9
		p := s.keys.Partition(calls[3][0].Key)
		testkit.Must(t, s.redis.Set(ctx, s.keys.Levels(p), "a stranger's", 0).Err())
		got, err := s.serve.CheckMany(ctx, calls)
		if !redisclient.IsRefusal(err) {
			t.Errorf("error %v, want a refusal", err)
		}
		for i, v := range got {
			st, err := s.serve.Peek(ctx, plan, calls[i][0].Key)
			testkit.Must(t, err)
			if answered := i != 3; v.Answered() != answered || st.Windows[0].Used > 0 != answered {
				t.Errorf("call %d: answered %t, %d used", i, v.Answered(), st.Windows[0].Used)
			}
		}
	})
}

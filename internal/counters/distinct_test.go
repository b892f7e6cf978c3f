package counters_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// touched is a model of the values of a key, in a few lines: value → when it was last seen.
type touched struct {
	Oracle
	seen map[string]int64
	last int64 // the time of the log's newest event: a late event counts there, unless it has left the window
}

const logSpan = 700

func (m *touched) count(value string, at, now, units int64) {
	m.seen[value] = max(m.seen[value], at)
	if at > now-logSpan {
		m.last = max(m.last, at)
		m.Add("k", m.last, units)
	}
}

// used returns the use of a window.
func (m *touched) used(w windows.Window, now int64) (n int64) {
	if w.Distinct == "" {
		return m.Used("k", now, w.Per.Milliseconds())
	}
	for _, at := range m.seen {
		if at > now-w.Per.Milliseconds() {
			n++
		}
	}
	return min(n, w.Limit+1)
}

// fits reports whether a window admits a value and a cost.
func (m *touched) fits(w windows.Window, now int64, value string, cost int64) bool {
	if w.Distinct == "" {
		return m.used(w, now)+cost <= w.Limit
	}
	return m.seen[value] > now-w.Per.Milliseconds() || m.used(w, now) < w.Limit
}

// wait returns how long it takes until all windows admit them.
func (m *touched) wait(list []windows.Window, now int64, value string, cost int64) (ms int64) {
	for slices.ContainsFunc(list, func(w windows.Window) bool { return !m.fits(w, now+ms, value, cost) }) {
		ms++
	}
	return ms
}

// state returns the use of a window, when less of it is used, and when nothing is used.
func (m *touched) state(w windows.Window, now int64) string {
	used, next, empty := m.used(w, now), int64(0), int64(0)
	for used > 0 && m.used(w, now+next) == used {
		next++
	}
	for m.used(w, now+empty) > 0 {
		empty++
	}
	return fmt.Sprintf("%d used, next free in %d, empty in %d", used, next, empty)
}

func TestDistinctValuesEqualTheRecount(t *testing.T) {
	users := func(limit int64, per time.Duration) windows.Window {
		return windows.Window{Limit: limit, Per: per, Distinct: "user", Normalize: windows.Normalize{Lower: true}}
	}
	live := []windows.Window{users(3, time.Second), {Limit: 12, Per: logSpan * time.Millisecond},
		users(5, 2*time.Second)}
	watched := []windows.Window{users(2, 1500*time.Millisecond), users(4, 2500*time.Millisecond)}
	rules := rulesOf(t, &windows.Rule{Name: "live", Match: "*", Windows: live, Alerts: []int{60}},
		&windows.Rule{Name: "shadow", Match: "*", Windows: watched, Shadow: true})
	eachRedis(t, rules, func(t *testing.T, s *store) {
		plan := s.rules.Match("k")
		rapid.Check(t, func(rt *rapid.T) {
			s.reset("k")
			s.clock.ms += 10_000
			appended := int64(0)
			m := &touched{seen: map[string]int64{}}
			value := rapid.StringMatching("[a-f]")
			for range rapid.IntRange(1, 30).Draw(rt, "steps") {
				s.clock.ms += rapid.Int64Range(0, 400).Draw(rt, "later")
				now := s.clock.ms
				if rapid.IntRange(0, 3).Draw(rt, "fold") == 0 {
					var events []counters.Event
					for range rapid.IntRange(1, 5).Draw(rt, "events") {
						v := value.Draw(rt, "value")
						at := now - rapid.Int64Range(0, 2500).Draw(rt, "ago")
						at = max(appended, at-at%3) // apart: two ms share an entry
						events = append(events, counters.Event{Key: "k", Ms: at, Count: 1,
							Fields: map[string]any{"user": v}})
					}
					slices.SortFunc(events, func(a, b counters.Event) int { return int(a.Ms - b.Ms) })
					appended = events[len(events)-1].Ms
					s.fold(rt, plan, events...)
					for _, e := range events {
						m.count(e.Field("user"), e.Ms, now, 1)
					}
				}
				s.askDistinct(t, rt, m, plan, value.Draw(rt, "value"), live, watched)
				s.sweep(rt)
			}
		})
	})
}

// askDistinct checks a value and compares the whole answer with the model.
func (s *store) askDistinct(t *testing.T, rt *rapid.T, m *touched, plan *windows.Plan, value string,
	live, watched []windows.Window) {
	now, cost := s.clock.ms, rapid.Int64Range(1, 4).Draw(rt, "cost")
	mode := rapid.SampledFrom([]api.Mode{api.ModeTake, api.ModeTake, api.ModeLook, api.ModeCharge}).Draw(rt, "mode")
	values, err := plan.Values(func(string) string { return "ABCDEF"[value[0]-'a' : value[0]-'a'+1] })
	testkit.Must(t, err)
	got := s.decide(counters.Request{Plan: plan, Key: "k", Cost: cost, Mode: mode, Values: values})
	wait, shadow := m.wait(live, now, value, cost), m.wait(watched, now, value, cost)
	if mode == api.ModeCharge || mode == api.ModeTake && wait == 0 {
		m.count(value, now, now, cost)
	}
	allowed := wait == 0
	if mode == api.ModeCharge && !allowed {
		wait = m.wait(live, now, "another", 1)
	}
	item := got.Items[0]
	if got.Allowed != allowed || item.RetryAfter.Milliseconds() != wait {
		rt.Fatalf("%s %s of %d at %d: allowed %v, retry after %v; want %d ms", mode, value, cost, now, got.Allowed,
			item.RetryAfter, wait)
	}
	if mode != api.ModeCharge && item.Shadows[0].RetryAfter.Milliseconds() != shadow {
		rt.Fatalf("the shadow: retry after %v, want %d ms", item.Shadows[0].RetryAfter, shadow)
	}
	shown := slices.Concat(item.Windows, item.Shadows[0].Windows)
	for i, w := range slices.Concat(live, watched) {
		is := fmt.Sprintf("%d used, next free in %d, empty in %d", shown[i].Used, shown[i].NextFreeMs, shown[i].EmptyMs)
		if want := m.state(w, now); is != want || shown[i].Distinct != w.Distinct {
			rt.Fatalf("window %d after %s %s of %d at %d: %s, want %s", i, mode, value, cost, now, is, want)
		}
	}
}

// A shadow rule counts the values of every check, so a process may not answer a check from memory.
func TestNoLeaseBesideAShadowRuleOfValues(t *testing.T) {
	hot := &windows.Rule{Name: "hot", Match: "*", Lease: time.Second, Windows: []windows.Window{
		{Limit: 9, Per: time.Minute}}}
	users := &windows.Rule{Name: "users", Match: "a", Shadow: true, Windows: []windows.Window{
		{Limit: 2, Per: time.Minute, Distinct: "user"}}}
	rules := rulesOf(t, hot, users)
	if rules.Match("a").LeaseTime() != 0 || rules.Match("b").LeaseTime() == 0 {
		t.Errorf("leases of %v beside values, of %v without", rules.Match("a").LeaseTime(),
			rules.Match("b").LeaseTime())
	}
}

const hashed = `hash_key: secret
rules:
  - {name: a, match: "*", windows: [{limit: 2, per: 1m, distinct: user, normalize: [lower], hash: true}]}
`

// hashedRules are rules whose values are hashed with a secret.
func hashedRules(t *testing.T, secret string) *windows.Rules {
	t.Helper()
	folder := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "secret"), []byte(secret+"\n"), 0o600))
	rules, err := windows.Parse(filepath.Join(folder, "rules.yml"), []byte(hashed))
	testkit.Must(t, err)
	return rules
}

// Redis gets hashes instead of values. Values are normalized before they are hashed. Another secret begins new sets.
func TestHashedValues(t *testing.T) {
	rules := hashedRules(t, "secret secret secret")
	eachRedis(t, rules, func(t *testing.T, s *store) {
		ask := func(rules *windows.Rules, user string) bool {
			t.Helper()
			s.clock.ms++
			plan := rules.Match("k")
			values, err := plan.Values(func(string) string { return user })
			testkit.Must(t, err)
			return s.decide(counters.Request{Plan: plan, Key: "k", Cost: 1, Values: values}).Allowed
		}
		plan := rules.Match("k")
		s.fold(t, plan, counters.Event{Key: "k", Ms: s.clock.ms, Count: 1, Fields: map[string]any{"user": "Alice"}})
		for _, c := range []struct {
			user string
			want bool
		}{{"bob", true}, {"ALICE", true}, {"carol", false}} {
			if got := ask(rules, c.user); got != c.want {
				t.Errorf("%s: allowed %v", c.user, got)
			}
		}
		list, err := s.serve.Values(t.Context(), plan, "k", s.clock.ms, 1)
		testkit.Must(t, err)
		if len(list) != 1 || !list[0].Hashed || len(list[0].Values) != 1 || len(list[0].Values[0].Value) != 22 {
			t.Errorf("values: %+v", list)
		}
		for _, name := range s.redis.Keys(t.Context(), s.keys.Prefix+":*distinct*").Val() {
			for _, member := range s.redis.ZRange(t.Context(), name, 0, -1).Val() {
				if strings.Contains("alice bob", strings.ToLower(member)) {
					t.Errorf("%s has the value %s", name, member)
				}
			}
		}
		if !ask(hashedRules(t, "another secret, as long"), "carol") {
			t.Error("another secret did not begin a new set")
		}
	})
}

// The fingerprint of rules differs for different secrets, and no text about the rules shows a secret.
func TestASecretIsNotShown(t *testing.T) {
	const secret = "secret secret secret"
	one, same, other := hashedRules(t, secret), hashedRules(t, secret), hashedRules(t, "another secret, as long")
	if one.Fingerprint() != same.Fingerprint() || one.Fingerprint() == other.Fingerprint() {
		t.Error("fingerprints: want one per secret")
	}
	text, err := json.Marshal(one.List())
	testkit.Must(t, err)
	if shown := fmt.Sprintf("%s %+v", text, one.List()[0]); strings.Contains(shown, secret) {
		t.Errorf("the secret is shown in %s", shown)
	}
}

func TestWhatASecretMayBe(t *testing.T) {
	folder := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "secret"), []byte("  short  \n"), 0o600))
	path := filepath.Join(folder, "rules.yml")
	fails := func(why string) {
		t.Helper()
		_, err := windows.Parse(path, []byte(hashed))
		const at = "rules.yml:1:11: hash_key"
		if text := fmt.Sprint(err); !strings.Contains(text, at) || !strings.Contains(text, why) {
			t.Errorf("%s, want %q", text, why)
		}
	}
	fails("it has 5 bytes: want at least 16")
	testkit.Must(t, os.Remove(filepath.Join(folder, "secret")))
	fails("no such file")
	rules, err := windows.Parse(path, []byte(hashed), windows.WithoutHashKey)
	testkit.Must(t, err)
	if rules.List()[0].Windows[0].Hash.IsZero() || rules.List()[0].Windows[0].Per != time.Minute {
		t.Errorf("%+v", rules.List()[0])
	}
}

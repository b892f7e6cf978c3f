package counters_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

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

package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

func throttled() api.Transition {
	return api.Transition{
		Rule: "api", Key: "user:42", State: api.StateThrottled, Level: 100, Limit: 10, WindowMs: 60_000,
		Used: 11, Version: 4_000, AtMs: 5_000, SinceMs: 4_000, UntilMs: 64_000, ExpiresMs: 70_000,
	}
}

func TestMessageIDAndSubject(t *testing.T) {
	for _, c := range []struct {
		state       api.State
		level       int
		key         string
		id, subject string
	}{
		{api.StateThrottled, 100, "user:42", "sc/throttle/api/100/60000/throttled/4000/64000/user:42",
			"sc.throttle.api.user:42"},
		{api.StateReleased, 100, "user:42", "sc/throttle/api/100/60000/released/4000/user:42",
			"sc.throttle.api.user:42"},
		{api.StateRaised, 100, "user:42", "sc/alert/api/100/60000/raised/4000/user:42", "sc.alert.api.100.user:42"},
		{api.StateCleared, 80, "user:42", "sc/alert/api/80/60000/cleared/4000/user:42", "sc.alert.api.80.user:42"},
		{api.StateThrottled, 100, "a\x00 b", "sc/throttle/api/100/60000/throttled/4000/64000/~YQAgYg",
			"sc.throttle.api.~YQAgYg"},
	} {
		for _, renewal := range []bool{false, true} {
			tr := throttled()
			tr.State, tr.Level, tr.Key, tr.Renewal = c.state, c.level, c.key, renewal
			if id, subject := tr.MessageID("sc"), tr.Subject("sc"); id != c.id || subject != c.subject {
				t.Errorf("%s, renewal %t: %s and %s, want %s and %s", c.state, renewal, id, subject, c.id, c.subject)
			}
		}
	}
}

func TestReadTransitionReadsWhatAWorkerPublishes(t *testing.T) {
	released, alert, block := throttled(), throttled(), throttled()
	released.State, released.ExpiresMs = api.StateReleased, released.UntilMs
	alert.State, alert.Level, alert.Key = api.StateRaised, 80, "a key"
	block.Rule, block.Limit, block.WindowMs = api.OverrideRule, 0, 0
	for _, want := range []api.Transition{throttled(), released, alert, block} {
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		data = append([]byte(`{"of_a_newer_version":1,`), data[1:]...)
		if got, err := api.ReadTransition(want.Subject("sc"), data); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", data, got, err, want)
		}
	}
}

func TestReadTransitionRefusesWhatNoWorkerPublishes(t *testing.T) {
	for name, change := range map[string]func(*api.Transition){
		"version 0":       func(d *api.Transition) { d.Version = 0 },
		"version":         func(d *api.Transition) { d.Version = math.MaxInt64 },
		"expires":         func(d *api.Transition) { d.ExpiresMs = 1 << 62 },
		"limit":           func(d *api.Transition) { d.Limit = 1 << 60 },
		"window":          func(d *api.Transition) { d.WindowMs = 1 << 60 },
		"level":           func(d *api.Transition) { d.Level = 7 },
		"since":           func(d *api.Transition) { d.SinceMs = -5 },
		"another key":     func(d *api.Transition) { d.Key = "user:43" },
		"another rule":    func(d *api.Transition) { d.Rule = "web" },
		"another subtree": func(d *api.Transition) { d.State = api.StateRaised },
	} {
		d := throttled()
		subject := d.Subject("sc")
		change(&d)
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := api.ReadTransition(subject, data); !errors.Is(err, api.ErrBadTransition) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := api.ReadTransition(throttled().Subject("sc"), []byte("{")); !errors.Is(err, api.ErrBadTransition) {
		t.Errorf("no JSON: %v", err)
	}
}

// A penalty that the library has not written is an error, and its entry becomes a dead letter.
func TestForeignPenalties(t *testing.T) {
	for text, want := range map[string]string{"1,2,3": "", "2,2,3": "", "0,2,3": "step 0", "3,2,3": "step 3",
		"1,2": "expected", "1,2,3,4": "expected", "1,2,x": "expected", "1,2,-3": "until -3"} {
		f, err := api.ReadInForce(func(string) string { return text })
		if err == nil {
			err = api.Transition{Rule: "api", Key: "k", State: api.StateThrottled, Level: 100, WindowMs: 1, Version: 1,
				InForce: f}.Validate()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// hashed is the form of long keys, implemented a second time from the contract.
func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "~~" + hex.EncodeToString(sum[:])
}

// inSubtree reports whether NATS takes a subject for one of `tokens` tokens that begins with prefix: none empty, no
// wildcard, nothing that ends a protocol line.
func inSubtree(subject, prefix string, tokens int) bool {
	if !strings.HasPrefix(subject, prefix) || len(subject) > 512 {
		return false
	}
	list := strings.Split(subject, ".")
	for _, token := range list {
		if token == "" || strings.ContainsFunc(token, func(c rune) bool {
			return c <= ' ' || c == 0x7f || c == '*' ||
				c == '>' || c > 0x7f
		}) {
			return false
		}
	}
	return len(list) == tokens
}

// FuzzKeyToken: each key, whatever its bytes, is one token of at most 256 bytes, from which the key is read again, or
// which is a hash. No other text is accepted as the token of a key.
func FuzzKeyToken(f *testing.F) {
	for _, key := range []string{"user:42", "", "~", "~~", "a.b", "*", ">", "a b", "\x00", "\r\n", "é", "\xff\xfe",
		"{tenant}:x", "KEYS[1]", "'); redis.call('FLUSHALL') --", "[a-z]?*",
		strings.Repeat("a", 128), strings.Repeat("a", 129), strings.Repeat(".", 191), strings.Repeat(".", 192),
		strings.Repeat("é", 256), "~dXNlcg", "~dXNlcg\n", "~dXNlch", "user:42=",
		"~user:42", "~~" + strings.Repeat("0", 64)} {
		f.Add(key, "api", 80)
	}
	f.Fuzz(func(t *testing.T, key, rule string, level int) {
		token := api.KeyToken(key)
		if len(token) > 256 || !inSubtree(token, "", 1) && key != "" {
			t.Fatalf("%q: token %q", key, token)
		}
		back, ok := api.ParseKeyToken(token)
		switch {
		case key == "":
		case strings.HasPrefix(token, "~~"):
			if ok || token != hashed(key) || len(key) < 129 {
				t.Fatalf("%q: token %q, back %q", key, token, back)
			}
		case !ok || back != key:
			t.Fatalf("%q: token %q, back %q, %v", key, token, back, ok)
		}
		if again, ok := api.ParseKeyToken(key); ok && (again == "" || api.KeyToken(again) != key) {
			t.Fatalf("%q is taken for the token of %q", key, again)
		}
		for _, state := range []api.State{api.StateThrottled, api.StateReleased, api.StateRaised, api.StateCleared} {
			tr := api.Transition{Rule: rule, Key: key, State: state, Level: level, WindowMs: 1}
			if tr.Validate() != nil {
				continue
			}
			subject, tokens, prefix := tr.Subject("sc"), 5, "sc.alert."+rule+"."
			if tr.IsThrottle() {
				tokens, prefix = 4, "sc.throttle."+rule+"."
			}
			if !inSubtree(subject, prefix, tokens) || !strings.HasSuffix(subject, "."+token) {
				t.Fatalf("%+v: subject %q", tr, subject)
			}
			if id := tr.MessageID("sc"); strings.ContainsAny(id, "\r\n ") || len(id) > 512 {
				t.Fatalf("%+v: id %q", tr, id)
			}
		}
	})
}

package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

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

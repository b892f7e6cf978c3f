package api_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// The three forms are implemented here a second time, from the contract.
func encoded(key string) string { return "~" + base64.RawURLEncoding.EncodeToString([]byte(key)) }

func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "~~" + hex.EncodeToString(sum[:])
}

func TestKeyToken(t *testing.T) {
	plain128, plain129 := strings.Repeat("a", 128), strings.Repeat("a", 129)
	dots191, dots192 := strings.Repeat(".", 191), strings.Repeat(".", 192)
	for _, c := range []struct{ name, key, want string }{
		{"plain", "user:42", "user:42"},
		{"every plain character", "azAZ09_:@=+-", "azAZ09_:@=+-"},
		{"dot", "10.0.0.1", "~MTAuMC4wLjE"},
		{"wildcards", "*>", "~Kj4"},
		{"space", "a b", "~YSBi"},
		{"slash", "/", "~Lw"},
		{"tilde, or it would meet an encoded one", "~YQ", "~fllR"},
		{"two tildes", "~~", "~fn4"},
		{"base64url and not base64", "??>>", "~Pz8-Pg"},
		{"beyond ASCII", "é", "~w6k"},
		{"plain, 128 bytes", plain128, plain128},
		{"plain, 129 bytes", plain129, encoded(plain129)},
		{"plain, 191 bytes", strings.Repeat("a", 191), encoded(strings.Repeat("a", 191))},
		{"plain, 192 bytes", strings.Repeat("a", 192), hashed(strings.Repeat("a", 192))},
		{"token of 256 bytes", dots191, encoded(dots191)},
		{"token would have 257", dots192, hashed(dots192)},
		{"512 bytes", strings.Repeat("k", 512), hashed(strings.Repeat("k", 512))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := api.KeyToken(c.key); got != c.want {
				t.Errorf("%q: %s, want %s", c.key, got, c.want)
			}
		})
	}
	if n := len(api.KeyToken(dots191)); n != 256 {
		t.Errorf("the longest encoded token has %d bytes, want 256", n)
	}
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

package api_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"pgregory.net/rapid"

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

var anyKey = rapid.OneOf(
	rapid.StringN(1, -1, 512),
	rapid.StringMatching(`[A-Za-z0-9_:@=+~-]{1,200}`),
	rapid.StringMatching(`[~aQ=.*>]{1,6}`),
)

// FuzzKeyToken has the other properties of a token.
func TestKeyTokensDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyKey.Draw(t, "a"), anyKey.Draw(t, "b")
		// The key that is most likely to have the same token is one that looks like the token.
		for _, other := range []string{b, api.KeyToken(a), api.KeyToken(api.KeyToken(a)), "~" + a, a + "="} {
			if a != other && api.KeyToken(a) == api.KeyToken(other) {
				t.Fatalf("%q and %q share the token %s", a, other, api.KeyToken(a))
			}
		}
	})
}

// KeyToken makes every token that can be parsed: no key has two tokens.
func TestParsedTokensAreOurs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		token := rapid.StringMatching(`~?[A-Za-z0-9_=~.\n-]{0,12}`).Draw(t, "token")
		if key, ok := api.ParseKeyToken(token); ok && (key == "" || api.KeyToken(key) != token) {
			t.Fatalf("%q is parsed to %q, whose token is %q", token, key, api.KeyToken(key))
		}
	})
}

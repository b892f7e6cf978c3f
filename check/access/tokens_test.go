package access_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// One token for each scope; the operator's token is in the file as its hash.
const (
	checker, appender, reader, operator = "checker-0123456789", "appender-0123456789", "reader-0123456789abc",
		"operator-0123456789"
)

// fourTokens is a file with these tokens.
var fourTokens = func() string {
	text, err := os.ReadFile("testdata/tokens.yml")
	if err != nil {
		panic(err)
	}
	return string(text)
}()

func TestMain(m *testing.M) { streamtest.Main(m) }

func sha(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func writeTokens(t testing.TB, text string) string { return testkit.WriteFile(t, "tokens.yml", text) }

func newTokens(t testing.TB, text string) *access.Tokens {
	t.Helper()
	tokens, err := access.NewTokens(writeTokens(t, text), prometheus.NewRegistry(), nil)
	testkit.Must(t, err)
	return tokens
}

func TestTokensAllow(t *testing.T) {
	tokens := newTokens(t, fourTokens)
	for _, c := range []struct {
		bearer string
		may    []access.Scope
		err    error // for the others
	}{
		{checker, []access.Scope{access.ScopeCheck}, api.ErrForbidden},
		{appender, []access.Scope{access.ScopeAppend}, api.ErrForbidden},
		{reader, []access.Scope{access.ScopeRead}, api.ErrForbidden},
		{operator, access.Scopes, nil},
		{"", nil, api.ErrUnauthenticated},
		{"nobody-0123456789", nil, api.ErrUnauthenticated},
		{checker[:len(checker)-1], nil, api.ErrUnauthenticated},
		{checker + "x", nil, api.ErrUnauthenticated},
		{sha(operator), nil, api.ErrUnauthenticated}, // the hash in the file is no token
		{strings.Repeat("x", 100_000), nil, api.ErrUnauthenticated},
	} {
		for _, scope := range access.Scopes {
			want := c.err
			for _, s := range c.may {
				if s == scope {
					want = nil
				}
			}
			if err := tokens.Allow(c.bearer, scope); !errors.Is(err, want) ||
				(err != nil && len(c.bearer) > 8 && strings.Contains(err.Error(), c.bearer)) {
				t.Errorf("%.20s for %s: %v, want %v and no token in it", c.bearer, scope, err, want)
			}
		}
		if err := tokens.Allow(c.bearer, access.ScopeAny); (err == nil) != (len(c.may) > 0) {
			t.Errorf("%.20s for anything: %v", c.bearer, err)
		}
	}
	if err := (*access.Tokens)(nil).Allow("", access.ScopeAdmin); err != nil {
		t.Errorf("no table: %v", err)
	}
}

func TestTokensFileErrors(t *testing.T) {
	const secret = "SECRET-SECRET-SECRET-SECRET"
	entry := func(more string) string { return "tokens:\n  - {name: a, " + more + "}\n" }
	many := strings.Builder{}
	many.WriteString("tokens:\n")
	for i := range 1001 {
		fmt.Fprintf(&many, "  - {name: n%d, token: %s-%d, scopes: [check]}\n", i, secret, i)
	}
	for name, c := range map[string]struct{ text, says string }{
		"empty":              {"", ":1:1: the file is empty"},
		"no list":            {"tokens: " + secret, ":1:9: tokens is something else: want a list"},
		"unknown field":      {"token: " + secret, `:1:1: unknown field "token": want tokens`},
		"a token as a field": {entry(secret + ": [check]"), ":2:15: unknown field"},
		"field twice": {entry("name: b, token: " + secret + ", scopes: [check]"),
			":2:15: field is given twice; first in line 2"},
		"neither": {entry("scopes: [check]"), ":2:5: want either token or sha256"},
		"both": {entry("token: " + secret + ", sha256: " + sha(secret) + ", scopes: [check]"),
			"either token or sha256"},
		"short": {entry("token: SECRET, scopes: [check]"), ":2:22: token: want 16 to 512"},
		"long": {entry("token: " + strings.Repeat("SECRET", 100) + ", scopes: [check]"),
			"16 to 512"},
		"odd characters": {entry(`token: "` + secret + ` x", scopes: [check]`), "want 16 to 512 of A-Z"},
		"beyond ASCII":   {entry(`token: "` + secret + `é", scopes: [check]`), "want 16 to 512 of A-Z"},
		"no hash": {entry("sha256: " + secret + ", scopes: [check]"),
			":2:23: sha256: want the SHA-256"},
		"half a hash": {entry("sha256: " + sha(secret)[:32] + ", scopes: [check]"),
			"64 hexadecimal digits"},
		"no scopes":           {entry("token: " + secret), ":2:5: scopes is missing"},
		"unknown scope":       {entry("token: " + secret + ", scopes: [check, root]"), ":2:67: an unknown scope"},
		"a mistyped scope":    {entry("token: " + secret + ", scopes: [chek]"), `an unknown scope "chek": want`},
		"a secret as a scope": {entry("token: " + secret + ", scopes: [" + secret + "]"), "an unknown scope: want"},
		"no name": {"tokens:\n  - {token: " + secret + ", scopes: [check]}\n",
			":2:5: name is missing"},
		"bad name": {"tokens:\n  - {name: A b, token: " + secret + ", scopes: [check]}\n",
			":2:12: name: want 1 to 64 of a-z"},
		"a list as a token": {entry("token: [" + secret + "], scopes: [check]"),
			":2:22: token is a list: want text"},
		"name twice": {entry("token: "+secret+", scopes: [check]") + "  - {name: a, token: x" + secret +
			", scopes: [check]}\n", ":3:12: the name is taken in line 2"},
		"token twice": {entry("token: "+secret+", scopes: [check]") + "  - {name: b, sha256: " +
			sha(secret) + ", scopes: [read]}\n", ":3:23: it is the same token as that in line 2"},
		"a second document": {entry("token: "+secret+", scopes: [check]") + "---\ntokens: []\n",
			"a second document"},
		"a list that holds itself": {"tokens: &a [*a]", ":1:9: tokens[0] is a list"},
		"begins with a star": {entry("token: *" + secret + ", scopes: [check]"),
			":2:22: text that begins with * needs quotes"},
		"a quote that never ends": {entry(`token: "` + secret), ":2:"},
		"not closed":              {"tokens:\n  - {name: a, token: " + secret + "\n", ":"},
		"too many":                {many.String(), "there are 1001 tokens: expected at most 1000"},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeTokens(t, c.text)
			_, err := access.NewTokens(path, prometheus.NewRegistry(), nil)
			if err == nil || !strings.HasPrefix(err.Error(), path+":") || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "SECRET") {
				t.Errorf("error %v, want the file, %q, and nothing secret", err, c.says)
			}
		})
	}
}

// A change of the file has effect at once. A change that cannot be used, or a file that everybody may read, is
// logged, without any token.
func TestTokensReload(t *testing.T) {
	var log bytes.Buffer
	path := writeTokens(t, fourTokens)
	registry := prometheus.NewRegistry()
	tokens, err := access.NewTokens(path, registry, slog.New(slog.NewTextHandler(&log, nil)))
	testkit.Must(t, err)
	if log.Len() > 0 {
		t.Errorf("a private file: %s", &log)
	}
	const fresh = "fresh-0123456789abcdef"
	for _, step := range []struct {
		text  string
		old   error
		fresh error
	}{
		{"tokens:\n  - {name: gateway, token: " + fresh + ", scopes: [check]}\n", api.ErrUnauthenticated, nil},
		{"tokens:\n  - {name: gateway, token: " + checker + "}\n", api.ErrUnauthenticated, nil},
		{fourTokens, nil, api.ErrUnauthenticated},
		{"tokens: []\n", api.ErrUnauthenticated, api.ErrUnauthenticated}, // the last one is revoked
		{fourTokens, nil, api.ErrUnauthenticated},
	} {
		testkit.Must(t, os.WriteFile(path, []byte(step.text), 0o600))
		_ = tokens.Reload()
		if err := tokens.Allow(checker, access.ScopeCheck); !errors.Is(err, step.old) {
			t.Errorf("the old token: %v, want %v", err, step.old)
		}
		if err := tokens.Allow(fresh, access.ScopeCheck); !errors.Is(err, step.fresh) {
			t.Errorf("the fresh token: %v, want %v", err, step.fresh)
		}
	}
	testkit.Must(t, os.Chmod(path, 0o644))
	testkit.Must(t, tokens.Reload())
	for _, want := range []string{"scopes is missing", "keeping the previous ones", "chmod o-r"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, &log)
		}
	}
	for _, secret := range []string{checker, fresh, operator, sha(operator)} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, &log)
		}
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP streamcounter_access_refused_total Requests refused: no_token, unknown_token, scope (the token has another).
# TYPE streamcounter_access_refused_total counter
streamcounter_access_refused_total{reason="no_token"} 0
streamcounter_access_refused_total{reason="scope"} 0
streamcounter_access_refused_total{reason="unknown_token"} 6
`)); err != nil {
		t.Error(err)
	}
}

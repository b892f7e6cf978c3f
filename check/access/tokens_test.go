package access_test

import (
	"bytes"
	"context"
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
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

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

// A story has files that are refused, and below each a line with where and why.
func TestRefusedFiles(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, story, _ string, lines []string) (out []string) {
		load := func(path string) error {
			if strings.Contains(story, "extractors") {
				_, err := access.NewExtractors(path, nil)
				return err
			}
			_, err := access.NewTokens(path, prometheus.NewRegistry(), nil)
			return err
		}
		text := ""
		for _, line := range lines {
			switch {
			case strings.HasPrefix(line, "<"):
				path := writeTokens(t, text)
				err := load(path)
				if err == nil || !strings.HasPrefix(err.Error(), path+":") || strings.Contains(err.Error(), "SECRET") {
					t.Errorf("%s: error %v, want one with the file, and without a secret", text, err)
					continue
				}
				where, _, _ := strings.Cut(err.Error(), "\n") // the lines around it follow
				text, line = "", "< "+strings.TrimPrefix(where, path+":")
			case !strings.HasPrefix(line, "#"):
				text += line + "\n"
			}
			out = append(out, line)
		}
		return out
	})
	many := "tokens:\n"
	for i := range 1001 {
		many += fmt.Sprintf("  - {name: n%d, token: abcdefghijklmnop-%d, scopes: [check]}\n", i, i)
	}
	if _, err := access.NewTokens(writeTokens(t, many), prometheus.NewRegistry(), nil); err == nil ||
		!strings.Contains(err.Error(), "there are 1001 tokens: expected at most 1000") {
		t.Errorf("1001 tokens: %v", err)
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

// callStream is a stream with the context of a call.
type callStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s callStream) Context() context.Context { return s.ctx }

func TestGRPCCallsWantTheirScope(t *testing.T) {
	tokens := newTokens(t, fourTokens)
	const ok, who, not = codes.OK, codes.Unauthenticated, codes.PermissionDenied
	for _, c := range []struct {
		name                      string
		metadata                  []string
		check, health, reflection codes.Code
	}{
		{"no token", nil, who, ok, who},
		{"a stranger's", []string{"authorization", "Bearer stranger-0123456789"}, who, ok, who},
		{"another scheme", []string{"authorization", "Basic " + operator}, who, ok, who},
		{"check", []string{"authorization", "Bearer " + checker}, ok, ok, not},
		{"check in our own header", []string{"x-streamcounter-token", checker, "authorization",
			"Bearer of-the-application"}, ok, ok, not},
		{"check behind empty headers", []string{"x-streamcounter-token", "", "authorization", "", "authorization",
			"Bearer " + checker}, ok, ok, not},
		{"append", []string{"authorization", "Bearer " + appender}, not, ok, not},
		{"read", []string{"authorization", "Bearer " + reader}, not, ok, ok},
		{"admin", []string{"authorization", "Bearer " + operator}, ok, ok, ok},
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(c.metadata...))
		for method, want := range map[string]codes.Code{
			"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit":    c.check,
			healthpb.Health_Check_FullMethodName:                              c.health,
			healthpb.Health_Watch_FullMethodName:                              c.health,
			reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: c.reflection,
		} {
			answered, served := false, false
			_, one := tokens.UnaryInterceptor(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method},
				func(context.Context, any) (any, error) { answered = true; return nil, nil })
			all := tokens.StreamInterceptor(nil, callStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: method},
				func(any, grpc.ServerStream) error { served = true; return nil })
			if status.Code(one) != want || status.Code(all) != want || answered != (want == ok) || served != answered {
				t.Errorf("%s with %s: %v, as a stream %v, want %s", method, c.name, one, all, want)
			}
		}
	}
}

package direct_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

func tenAMinute(t *testing.T) func() *windows.Rules {
	t.Helper()
	rules, err := windows.NewRules([]*windows.Rule{{Name: "user", Match: "user:*",
		Windows: []windows.Window{{Limit: 10, Per: time.Minute}}}})
	testkit.Must(t, err)
	return windows.Fixed(rules).Rules
}

// The tests of stream have the other clients.
func TestConnectionsThatDoNotSuit(t *testing.T) {
	url := streamtest.Redis(t)
	prefix := streamtest.Prefix(t)
	config := direct.Config{Rules: tenAMinute(t), Prefix: prefix}
	for says, c := range map[string]redis.UniversalClient{
		"MaxRetries":            streamtest.Connect(t, url, func(o *redis.Options) { o.MaxRetries = 3 }),
		"ContextTimeoutEnabled": streamtest.Connect(t, url, func(o *redis.Options) { o.ContextTimeoutEnabled = false }),
		"required":              nil,
	} {
		if _, err := direct.NewRedis(t.Context(), c, config); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one about %s", err, says)
		}
	}
	c := streamtest.Connect(t, url)
	_, err := direct.NewRedis(t.Context(), c, config)
	testkit.Must(t, err)
	config.Partitions = 8
	if _, err := direct.NewRedis(t.Context(), c, config); !errors.Is(err, stream.ErrMismatch) ||
		!strings.Contains(err.Error(), "16") {
		t.Errorf("other partitions than those in use: %v", err)
	}
	if _, err := direct.NewRedis(t.Context(), c, direct.Config{Rules: func() *windows.Rules { return nil },
		Prefix: prefix}); err == nil || !strings.Contains(err.Error(), "required") {
		t.Errorf("no rules: %v", err)
	}
	config.Prefix = "NO"
	if _, err := direct.NewRedis(t.Context(), c, config); err == nil || !strings.Contains(err.Error(), `"NO"`) {
		t.Errorf("a bad prefix: %v", err)
	}
}

// Answers of Redis are distinguished from missing answers: only what was certainly not done is sent again, and an
// answer that stays the same does not count as an outage. The test has the rights of serve in deploy/users.acl and no
// more: if Redis itself refused something, the package fails at its end.
func TestWhatRedisRefuses(t *testing.T) {
	c := streamtest.Connect(t, streamtest.RedisAs(t, "serve"))
	var refuse error // what scripts are answered with, while it is set
	c.AddHook(streamtest.OnCommand(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if refuse != nil && streamtest.IsScript(cmd) {
			cmd.SetErr(refuse)
			return refuse
		}
		return next(ctx, cmd)
	}))
	r, err := direct.NewRedis(t.Context(), c, direct.Config{Rules: tenAMinute(t), Prefix: streamtest.Prefix(t)})
	testkit.Must(t, err)
	for _, s := range []struct {
		with           error
		again, unknown bool
	}{
		{with: streamtest.Refusal("WRONGTYPE Operation against a key")},
		{with: streamtest.Refusal("OOM command not allowed"), again: true},
		{with: streamtest.Refusal("LOADING Redis is loading"), again: true},
		{with: redis.ErrPoolTimeout, again: true},
		{with: &net.OpError{Op: "dial", Err: errors.New("refused")}, again: true},
		{with: &net.OpError{Op: "read", Err: errors.New("reset")}, unknown: true},
		{with: io.EOF, unknown: true},
		{with: context.DeadlineExceeded, unknown: true},
	} {
		refuse = s.with
		_, err := r.Check(t.Context(), api.CheckRequest{Key: "user:1"})
		if !errors.Is(err, api.ErrNoAnswer) || errors.Is(err, api.ErrNotSent) != s.again ||
			errors.Is(err, api.ErrOutcomeUnknown) != s.unknown || !errors.Is(err, s.with) {
			t.Errorf("%v: error %v, want again %t, unknown %t", s.with, err, s.again, s.unknown)
		}
		if _, err := r.Peek(t.Context(), "user:1"); !errors.Is(err, api.ErrNotSent) {
			t.Errorf("%v: a look may always be sent again: %v", s.with, err)
		}
		look := []api.CheckRequest{{Key: "user:1", Mode: api.ModeLook}}
		_, err = r.Check(t.Context(), look[0])
		_, all := r.CheckAll(t.Context(), look)
		each, _ := r.CheckEach(t.Context(), look)
		for _, err := range []error{err, all, each[0].Err} {
			if errors.Is(err, api.ErrNotSent) != (s.again || s.unknown) || errors.Is(err, api.ErrOutcomeUnknown) ||
				each[0].Key != "" {
				t.Errorf("%v: a look may always be sent again: %v, %+v", s.with, err, each[0])
			}
		}
	}
}

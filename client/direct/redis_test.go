package direct_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
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

// The tests have the rights of serve in deploy/users.acl and no more. If Redis refused something, the package fails
// at its end.
func TestUnderTheShippedRights(t *testing.T) {
	r, err := direct.NewRedis(t.Context(), streamtest.Connect(t, streamtest.RedisAs(t, "serve")),
		direct.Config{Rules: tenAMinute(t), Prefix: streamtest.Prefix(t)})
	testkit.Must(t, err)
	all, err := r.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:1", Cost: 4}, {Key: "user:2"},
		{Key: "user:1", Cost: 6}})
	testkit.Must(t, err)
	if !all.Allowed || all.Checks[2].Windows[0].Used != 10 || all.Checks[0].Cost != 4 {
		t.Errorf("%+v, want 10 of 10 used by user:1", all)
	}
	k, err := r.Peek(t.Context(), "user:2")
	testkit.Must(t, err)
	if k.Windows[0].Used != 1 {
		t.Errorf("%+v", k)
	}
	if _, err := r.CheckAll(t.Context(), []api.CheckRequest{{Key: "user:1", Cost: 6},
		{Key: "user:1", Cost: 6}}); !errors.Is(err, api.ErrCostExceedsLimit) {
		t.Errorf("6 and 6 of one key: %v", err)
	}
}

// A client gives each check a key of its own. Within a process its first attempt may be answered from memory, with a
// key of the caller it may not.
func TestMemoryAnswersThroughAClient(t *testing.T) {
	rules, err := windows.NewRules([]*windows.Rule{{Name: "hot", Match: "*", Lease: 10 * time.Second,
		Windows: []windows.Window{{Limit: 1000, Per: time.Minute}}}})
	testkit.Must(t, err)
	r, err := direct.NewRedis(t.Context(), streamtest.AnyRedis(t), direct.Config{Rules: windows.Fixed(rules).Rules,
		Prefix: streamtest.Prefix(t), Now: func() int64 { return 1_700_000_000_000 }}) // no lease ends
	testkit.Must(t, err)
	defer r.Close()
	n, err := client.New(r, client.Config{Timeout: 20 * time.Second})
	testkit.Must(t, err)
	wantSource := func(ctx context.Context, req api.CheckRequest, allowed bool, source api.Source) {
		t.Helper()
		a, err := n.Check(ctx, req)
		if err != nil || a.Allowed != allowed || a.Source != source {
			t.Errorf("%+v, %v, want allowed %t, source %s", a, err, allowed, source)
		}
	}
	hot, full := api.CheckRequest{Key: "hot"}, api.CheckRequest{Key: "full"}
	for range 15 {
		_, err := n.Check(t.Context(), hot)
		testkit.Must(t, err)
	}
	_, err = n.Check(t.Context(), api.CheckRequest{Key: "full", Cost: 1000})
	testkit.Must(t, err)
	wantSource(t.Context(), full, false, api.SourceRedis)
	wantSource(t.Context(), hot, true, api.SourceLease)
	wantSource(t.Context(), full, false, api.SourceCache)
	ctx := api.WithIdempotency(t.Context(), api.Idempotency{Key: "hot"})
	wantSource(ctx, hot, true, api.SourceRedis)
	ctx = api.WithIdempotency(t.Context(), api.Idempotency{Key: "full"})
	wantSource(ctx, full, false, api.SourceRedis)
}

func TestConnectionsThatDoNotSuit(t *testing.T) {
	url := streamtest.Redis(t)
	prefix := streamtest.Prefix(t)
	config := direct.Config{Rules: tenAMinute(t), Prefix: prefix}
	for says, c := range map[string]redis.UniversalClient{
		"MaxRetries":            streamtest.Connect(t, url, func(o *redis.Options) { o.MaxRetries = 3 }),
		"ContextTimeoutEnabled": streamtest.Connect(t, url, func(o *redis.Options) { o.ContextTimeoutEnabled = false }),
		"required":              nil,
		// A plain client of a Cluster repeats commands whatever MaxRetries says.
		"stream.NewCluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"},
			MaxRetries: -1, ContextTimeoutEnabled: true}),
		"deadlines": stream.NewCluster(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
	} {
		if _, err := direct.NewRedis(t.Context(), c, config); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one about %s", err, says)
		}
	}
	testkit.Must(t, func() error {
		_, err := direct.NewRedis(t.Context(), streamtest.Connect(t, url),
			config)
		return err
	}())
	config.Partitions = 8
	if _, err := direct.NewRedis(t.Context(), streamtest.Connect(t, url), config); !errors.Is(err,
		stream.ErrMismatch) ||
		!strings.Contains(fmt.Sprint(err), "16") {
		t.Errorf("other partitions than those in use: %v", err)
	}
	config.Prefix = "NO"
	if _, err := direct.NewRedis(t.Context(), streamtest.Connect(t, url), config); err == nil ||
		!strings.Contains(err.Error(), `"NO"`) {
		t.Errorf("a bad prefix: %v", err)
	}
}

// Answers of Redis are distinguished from missing answers: only what was certainly not done is sent again, and an
// answer that stays the same does not count as an outage.
func TestWhatRedisRefuses(t *testing.T) {
	c := streamtest.Connect(t, streamtest.Redis(t))
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
	n, err := client.New(r, client.Config{Timeout: 20 * time.Second, Policy: client.Deny})
	testkit.Must(t, err)
	for _, s := range []struct {
		with                   error
		again, unknown, closed bool
	}{
		{with: streamtest.Refusal("WRONGTYPE Operation against a key"), closed: true},
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
		if !s.closed {
			continue
		}
		for range 20 {
			if a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1"}); a.Allowed ||
				!errors.Is(err, api.ErrUnavailable) {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		refuse = nil
		if a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:2"}); err != nil || a.Source != api.SourceRedis {
			t.Errorf("%+v, %v: the breaker is open", a, err)
		}
	}
}

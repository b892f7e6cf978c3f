package redisclient_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

func TestIsRefusal(t *testing.T) {
	m := streamtest.EmbeddedRedis(t)
	c := streamtest.Connect(t, m.Addr())
	ctx := context.Background()
	answer := func(text string) error {
		m.SetError(text)
		defer m.SetError("")
		return fmt.Errorf("folding: %w", c.Ping(ctx).Err())
	}
	for text, want := range map[string]bool{
		"WRONGTYPE Operation against a key": true, "ERR user_script:12": true,
		"LOADING Redis is loading": false, "BUSY Redis is busy": false, "OOM command not allowed": false,
		"READONLY You can't write":            false,
		"NOPERM this user has no permissions": false, "NOREPLICAS Not enough good replicas": false,
		"TRYAGAIN Multiple keys": false,
	} {
		if got := redisclient.IsRefusal(answer(text)); got != want {
			t.Errorf("%s: %v, expected %v", text, got, want)
		}
	}
	for _, err := range []error{nil, context.DeadlineExceeded, errors.New("EOF")} {
		if redisclient.IsRefusal(err) {
			t.Errorf("%v: a refusal, though Redis has said nothing", err)
		}
	}
}

// A failure says whether Redis refused, without Redis's text, which can have keys and addresses.
func TestFailure(t *testing.T) {
	refused := fmt.Errorf("folding: %w", streamtest.Refusal("MISCONF Errors writing to the AOF file"))
	for err, want := range map[error]string{
		refused:                  "Redis refuses it: MISCONF",
		context.DeadlineExceeded: "Redis does not answer",
		fmt.Errorf("no such master: %w", redis.Nil): "Redis does not answer",
	} {
		if got := redisclient.Failure(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// A field that the first hash does not have does not hide that another is no hash.
func TestHGetEach(t *testing.T) {
	m := streamtest.EmbeddedRedis(t)
	c, ctx := streamtest.Connect(t, m.Addr()), context.Background()
	m.HSet("a", "f", "1")
	got, err := redisclient.HGetEach(ctx, c, []string{"none", "a"}, "f")
	if err != nil || !slices.Equal(got, []string{"", "1"}) {
		t.Errorf("%q, %v", got, err)
	}
	_ = m.Set("text", "x")
	if got, err := redisclient.HGetEach(ctx, c, []string{"none", "text"}, "f"); !redisclient.IsWrongType(err) {
		t.Errorf("%q, %v", got, err)
	}
}

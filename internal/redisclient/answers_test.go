package redisclient_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

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

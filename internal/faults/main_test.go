package faults

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// TestMain keeps go-redis quiet: that connections fail is what is done here.
func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	streamtest.Main(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

package streamtest

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// OnCommand is a hook of go-redis. It runs before each command outside a pipeline.
type OnCommand func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

// DialHook implements redis.Hook.
func (f OnCommand) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (f OnCommand) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements redis.Hook.
func (f OnCommand) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return f(ctx, cmd, next) }
}

// IsScript reports whether a command runs a script or a function of ours.
func IsScript(cmd redis.Cmder) bool {
	return strings.HasPrefix(cmd.Name(), "eval") || strings.HasPrefix(cmd.Name(), "fcall")
}

// Refusal is an error reply of Redis.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// RedisError implements redis.Error.
func (Refusal) RedisError() {}

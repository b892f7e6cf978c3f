package eventlog

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/stream"
)

// Types is the result for one partition: a key that has the wrong type, or why this is unknown.
type Types struct {
	Wrong string // the name of a key that has the wrong type; empty if each key has the right type
	Err   error  // another error, if no key is known to have the wrong type
	// Beside is like Wrong, for the keys that only reservations or overrides need.
	Beside string
}

// TypesOf examines the types of partitions' own keys.
func TypesOf(ctx context.Context, c redis.UniversalClient, k *stream.Keys, parts []int) map[int]Types {
	pipe := c.Pipeline()
	required, beside := make(map[int][]redis.Cmder, len(parts)), make(map[int][]redis.Cmder, len(parts))
	for _, p := range parts {
		required[p] = []redis.Cmder{
			pipe.XLen(ctx, k.Events(p)), pipe.XLen(ctx, k.Outbox(p)), pipe.HLen(ctx, k.Levels(p)),
			pipe.ZCard(ctx, k.Due(p)), pipe.ZCard(ctx, k.IDs(p)),
		}
		beside[p] = []redis.Cmder{
			pipe.HLen(ctx, k.Reservations(p)), pipe.HLen(ctx, k.Overrides(p)), pipe.XLen(ctx, k.Audit(p)),
		}
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	all := make(map[int]Types, len(parts))
	for _, p := range parts {
		is := typesIn(required[p])
		is.Beside = typesIn(beside[p]).Wrong
		all[p] = is
	}
	return all
}

// typesIn reads the replies to commands, each of which fails if its key has the wrong type.
func typesIn(required []redis.Cmder) (is Types) {
	for _, cmd := range required {
		switch e := cmd.Err(); {
		case e == nil:
		case redisclient.IsWrongType(e):
			return Types{Wrong: fmt.Sprint(cmd.Args()[1])}
		default:
			is.Err = e
		}
	}
	return is
}

package lua

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Lock runs lock.lua for each of these keys of one server: it takes or keeps a lock for ms milliseconds, or with 0
// gives it back. It tells of each key whether owner holds it now. An error says why a key is missing from the answer.
func (s *Server) Lock(ctx context.Context, keys []string, owner string, ms int64) (map[string]bool, error) {
	held, refused, failed := s.lockTogether(ctx, keys, owner, ms)
	for _, key := range refused {
		n, err := s.integers(ctx, "lock", nil, []string{key}, []any{owner, ms}, 1)
		if err != nil {
			return held, err
		}
		held[key] = n[0] == 1
	}
	return held, failed
}

// lockTogether calls the function for all keys in one round trip. refused are those that the server refused, as it
// has no such function: a single call then loads the library, or runs the script.
func (s *Server) lockTogether(ctx context.Context, keys []string, owner string, ms int64) (held map[string]bool,
	refused []string, failed error) {
	held = make(map[string]bool, len(keys))
	if time.Now().UnixMilli() < s.noFunctions.Load() {
		return held, keys, nil
	}
	pipe, name := s.client.Pipeline(), Library().Name+string(frees)
	calls := make([]*redis.Cmd, len(keys))
	for i, key := range keys {
		calls[i] = pipe.FCall(ctx, name, []string{key}, owner, ms, "lock")
	}
	_, _ = pipe.Exec(ctx) // each call has its own error
	for i, call := range calls {
		n, err := call.Int64()
		switch {
		case isNotFound(err), isUnknownCommand(err), mayNotCall(err):
			refused = append(refused, keys[i])
		case err != nil:
			failed = fmt.Errorf("lock script: %w", err)
		default:
			held[keys[i]] = n == 1
		}
	}
	return held, refused, failed
}

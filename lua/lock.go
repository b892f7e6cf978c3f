package lua

import (
	"context"
)

// Lock runs lock.lua for keys of one server, on a Cluster of one slot. It takes or keeps the locks for ms
// milliseconds; with 0 it gives them back. It returns for each key whether owner holds it now.
func (s *Caller) Lock(ctx context.Context, keys []string, owner string, ms int64) (map[string]bool, error) {
	r := s.call(ctx, "lock", nil, keys, []any{owner, ms})
	held := make(map[string]bool, len(keys))
	for _, key := range keys {
		held[key] = r.integer() == 1
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return held, nil
}

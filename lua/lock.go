package lua

import (
	"context"
)

// Lock runs lock.lua for keys of one server, on a Cluster of one slot. It takes or keeps the locks for ms
// milliseconds; with 0 it gives them back. It returns for each key whether owner holds it now.
func (s *Server) Lock(ctx context.Context, keys []string, owner string, ms int64) (map[string]bool, error) {
	n, err := s.integers(ctx, "lock", nil, keys, []any{owner, ms}, len(keys))
	if err != nil {
		return nil, err
	}
	held := make(map[string]bool, len(keys))
	for i, key := range keys {
		held[key] = n[i] == 1
	}
	return held, nil
}

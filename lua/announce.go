package lua

import (
	"context"
	"fmt"
)

// Process is a process that runs, and the fingerprint of its rules.
type Process struct {
	Name, Fingerprint string
	SinceMs           int64 // when it began to use these rules, by Redis's clock
}

// Announce runs announce.lua: it announces, for ms milliseconds, that p runs. Redis sets its
// SinceMs. It returns all processes that run, with p, and Redis's time.
func (s *Server) Announce(ctx context.Context, key string, now Now, p Process, ms int64) (all []Process,
	nowMs int64, err error) {
	const op = "announce"
	v, err := s.call(ctx, op, nil, []string{key}, []any{now.arg(), p.Name, p.Fingerprint, ms})
	if err != nil {
		return nil, 0, fmt.Errorf("%s script: %w", op, err)
	}
	wrong := fmt.Errorf("%s script: reply %v, expected the time and three values per process", op, v)
	list, ok := v.([]any)
	if !ok || len(list)%3 != 1 {
		return nil, 0, wrong
	}
	if nowMs, ok = list[0].(int64); !ok {
		return nil, 0, wrong
	}
	for i := 1; i < len(list); i += 3 {
		name, named := list[i].(string)
		print, printed := list[i+1].(string)
		since, timed := list[i+2].(int64)
		if !named || !printed || !timed {
			return nil, 0, wrong
		}
		all = append(all, Process{name, print, since})
	}
	return all, nowMs, nil
}

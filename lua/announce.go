package lua

import "context"

// Process is a process that runs, and the fingerprint of its rules.
type Process struct {
	Name, Fingerprint string
	SinceMs           int64 // when it began to use these rules, by Redis's clock
}

// Announce runs announce.lua: it announces, for ms milliseconds, that p runs. Redis sets its
// SinceMs. It returns all processes that run, with p, and Redis's time.
func (s *Caller) Announce(ctx context.Context, key string, now Now, p Process, ms int64) (all []Process,
	nowMs int64, err error) {
	r := s.call(ctx, "announce", nil, []string{key}, []any{now.arg(), p.Name, p.Fingerprint, ms})
	nowMs = r.integer()
	for r.at < len(r.list) {
		all = append(all, Process{Name: next[string](&r), Fingerprint: next[string](&r), SinceMs: r.integer()})
	}
	return all, nowMs, r.end()
}

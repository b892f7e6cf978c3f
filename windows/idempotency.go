package windows

import (
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// Memory is where the answer to a call is remembered, in the same step as the call is charged.
type Memory struct {
	Key         string // an idempotency key
	Fingerprint string // of what is asked for; without spaces
	// Retention is how long a new answer is remembered; 0: it is not, and an older one is found.
	Retention time.Duration
}

// ReadOnly finds an answer and remembers no new one; nil stays nil.
func (m *Memory) ReadOnly() *Memory {
	if m == nil {
		return nil
	}
	return &Memory{Key: m.Key, Fingerprint: m.Fingerprint}
}

// memoryName is the name in Redis of a memory. On one
// server the key alone chooses its partition. On a Cluster it stands where the first key of
// the call does, as one script can touch no other: there the same key with another first
// key can be another memory.
func (s *Redis) memoryName(m *Memory, first string) string {
	if eventlog.IsCluster(s.redis) {
		return s.keys.Idempotency(s.keys.Partition(first), m.Key)
	}
	return s.keys.Idempotency(s.keys.Partition(m.Key), m.Key)
}

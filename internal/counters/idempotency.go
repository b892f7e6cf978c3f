package counters

import (
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// Memory remembers the answer to a call under its idempotency key, in the step that charges the call.
type Memory struct {
	Key         string // an idempotency key
	Fingerprint string // of the call; without spaces
	// Retention is how long a new answer is remembered; 0: it is not remembered, but an older answer is found.
	Retention time.Duration
}

// ReadOnly finds an answer and remembers no new one; nil stays nil.
func (m *Memory) ReadOnly() *Memory {
	if m == nil {
		return nil
	}
	return &Memory{Key: m.Key, Fingerprint: m.Fingerprint}
}

// memoryName returns the name of a memory in Redis. On a single server its partition depends
// only on the idempotency key. A script on a Cluster reaches only one slot, so there the memory
// is in the partition of the call's first key. Calls with the same idempotency key and different
// first keys then have different memories.
func (s *Redis) memoryName(m *Memory, first string) string {
	if eventlog.IsCluster(s.redis) {
		return s.keys.Idempotency(s.keys.Partition(first), m.Key)
	}
	return s.keys.Idempotency(s.keys.Partition(m.Key), m.Key)
}

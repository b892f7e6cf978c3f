package counters

import (
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// Memory remembers the answer to a call under its idempotency key, in the step that charges the call.
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

// memoryName is the name of a memory in Redis. On one server the idempotency key alone
// chooses its partition. A script on a Cluster reaches one slot only, so there the memory
// lies beside the first key of the call, and calls with one idempotency key and different
// first keys have different memories.
func (s *Redis) memoryName(m *Memory, first string) string {
	if eventlog.IsCluster(s.redis) {
		return s.keys.Idempotency(s.keys.Partition(first), m.Key)
	}
	return s.keys.Idempotency(s.keys.Partition(m.Key), m.Key)
}

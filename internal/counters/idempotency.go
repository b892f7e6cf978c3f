package counters

import (
	"time"

	"github.com/streamcounter/streamcounter/internal/eventlog"
)

// Replay remembers the answer to a call under its idempotency key, in the step that charges the call.
type Replay struct {
	Key         string // an idempotency key
	Fingerprint string // of the call; without spaces
	// Retention is how long a new answer is remembered; 0: it is not remembered, but an older answer is found.
	Retention time.Duration
}

// ReadOnly returns a Replay that finds an answer but remembers no new one; nil for nil.
func (m *Replay) ReadOnly() *Replay {
	if m == nil {
		return nil
	}
	return &Replay{Key: m.Key, Fingerprint: m.Fingerprint}
}

// replayName returns the name of a replay in Redis. On a single server its partition depends
// only on the idempotency key. A script on a Cluster reaches only one slot, so there the replay
// is in the partition of the call's first key. Calls with the same idempotency key and different
// first keys then have different replays.
func (s *Redis) replayName(m *Replay, first string) string {
	if eventlog.IsCluster(s.redis) {
		return s.keys.Idempotency(s.keys.Partition(first), m.Key)
	}
	return s.keys.Idempotency(s.keys.Partition(m.Key), m.Key)
}

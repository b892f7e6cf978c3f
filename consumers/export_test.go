package consumers

import (
	"context"
	"time"
)

// FoldSeparately gives each partition a script call of its own, as on a Cluster.
func (c *Config) FoldSeparately() { c.separately = true }

// OnReadPause sets what is called in place of a pause between two reads.
func (c *Config) OnReadPause(do func(d time.Duration)) {
	c.readPause = func(_ context.Context, d time.Duration) bool { do(d); return true }
}

// OnRescan sets what is called before a walk over all keys begins, after a change of the rules.
func (c *Config) OnRescan(do func()) { c.onRescan = do }

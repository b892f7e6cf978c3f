package consumers

import (
	"context"
	"time"
)

// FoldSeparately makes a separate script call for each partition, as on a Cluster.
func (c *Config) FoldSeparately() { c.separately = true }

// OnReadPause sets a function that is called in place of a pause between two reads.
func (c *Config) OnReadPause(do func(d time.Duration)) {
	c.readPause = func(_ context.Context, d time.Duration) bool { do(d); return true }
}

// OnRescan sets a function that is called before a walk over all keys begins, after a change of the rules.
func (c *Config) OnRescan(do func()) { c.onRescan = do }

package node

import (
	"context"
	"time"
)

// openOverrides loads what operators have set for single keys. The process answers nothing before that, because a
// blocked key must not pass while a process starts. If a part of a Cluster does not answer, its overrides are loaded
// when it answers again.
func (n *node) openOverrides(ctx context.Context) error {
	n.present = n.counter.Present(n.rules.Rules, n.log)
	all := n.present().Overrides()
	n.background = append(n.background, all.Run)
	within, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	if err := all.Poll(within); err != nil {
		n.log.Warn("some overrides cannot be loaded yet", "error", err)
	}
	if count := all.Len(); count > 0 {
		took := time.Since(began).Round(time.Millisecond)
		n.log.Info("overrides are loaded", "overrides", count, "took", took.String())
	}
	return nil
}

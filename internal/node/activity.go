package node

import (
	"context"

	"github.com/streamcounter/streamcounter/internal/activity"
)

func (n *node) openActivity(context.Context) error {
	n.activity = activity.NewRecorder(activity.Config{Redis: n.redis, Keys: n.keys, Process: n.processName(),
		Command: n.command, Log: n.log})
	n.background = append(n.background, n.activity.Run)
	return nil
}

// gatherActivity returns the activity of all processes, with the newest of this one.
func (n *node) gatherActivity(ctx context.Context) (activity.Activity, error) {
	if err := n.activity.Publish(ctx); err != nil {
		return activity.Activity{}, err
	}
	return activity.Gather(ctx, n.redis, n.keys)
}

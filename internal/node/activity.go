package node

import (
	"context"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// openActivity creates the recorder of this process's activity.
func (n *node) openActivity(context.Context) error {
	n.activity = activity.NewRecorder(activity.Config{Redis: n.redis, Keys: n.keys, Process: n.processName(),
		Command: n.command, Log: n.log})
	return nil
}

// gatherActivity returns the activity of all processes, with the newest of this one.
func (n *node) gatherActivity(ctx context.Context) (activity.Activity, error) {
	if err := n.activity.Publish(ctx); err != nil {
		return activity.Activity{}, err
	}
	return activity.Gather(ctx, n.redis, n.keys)
}

// openHistory returns the reader of a key's transitions, nil without NATS.
func (n *node) openHistory() (check.Transitions, error) {
	if n.nc == nil {
		return nil, nil
	}
	var err error
	n.history, err = alerts.NewHistory(n.nc, n.keys.Prefix)
	return n.history, err
}

package node

import (
	"context"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// openActivity makes the recorder of what this process does.
func (n *node) openActivity(context.Context) error {
	n.activity = activity.NewRecorder(activity.Config{Redis: n.redis, Keys: n.keys, Process: n.processName(),
		Command: n.command, Log: n.log})
	return nil
}

// gatherActivity gives what all processes do, with the newest of this one.
func (n *node) gatherActivity(ctx context.Context) (activity.Activity, error) {
	if err := n.activity.Publish(ctx); err != nil {
		return activity.Activity{}, err
	}
	return activity.Gather(ctx, n.redis, n.keys)
}

// openHistory gives what reads the transitions of a key, nil without NATS.
func (n *node) openHistory() (check.Transitions, error) {
	if n.nc == nil {
		return nil, nil
	}
	var err error
	n.history, err = alerts.NewHistory(n.nc, n.keys.Prefix)
	return n.history, err
}

package node

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/page"
	"github.com/streamcounter/streamcounter/internal/wording"
	"github.com/streamcounter/streamcounter/windows"
)

func (n *node) openPage(context.Context) error {
	c := page.Config{Version: n.build.Version, Prefix: n.keys.Prefix, Activity: n.gatherActivity,
		Overview: n.api.OverviewInTurn, Partitions: n.partitions, Rules: n.pageRules, Health: n.pageHealth,
		Latencies: n.service.Latencies}
	if n.history != nil {
		c.Follow = n.history.Follow
	}
	n.feed = page.NewFeed(c)
	n.background = append(n.background, n.feed.Run)
	return nil
}

// pageHealth asks Redis, for at most a second, and returns the known state of NATS.
func (n *node) pageHealth(ctx context.Context) page.Health {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	out, began := page.Health{RedisMs: -1}, time.Now()
	if n.redis.Ping(ctx).Err() == nil {
		out.RedisMs = float64(time.Since(began).Microseconds()) / 1000
	}
	if n.nats != nil {
		out.NATS = "away"
		if n.nats.Connected() {
			out.NATS = "connected"
		}
	}
	if since, checks := n.service.Outage(); !since.IsZero() {
		out.OnError = &page.OnError{SinceMs: since.UnixMilli(), Allow: checks[windows.OnErrorAllow],
			Deny: checks[windows.OnErrorDeny], Local: checks[windows.OnErrorLocal]}
	}
	return out
}

func (n *node) pageRules() []page.Rule {
	out := []page.Rule{}
	for _, r := range n.rules.Rules().List() {
		out = append(out, page.Rule{Name: r.Name, Match: r.Match, Shadow: r.Shadow, Says: wording.Rule(r)})
		if len(out) == 200 { // there can be thousands of Envoy's limits
			break
		}
	}
	return out
}

// partitions measures the backlog of the workers. It leaves out partitions whose server does not answer.
func (n *node) partitions(ctx context.Context) ([]page.Partition, error) {
	backlogs, failed := eventlog.Backlogs(ctx, n.redis, n.keys)
	pipe := n.redis.Pipeline()
	outbox, dead := map[int]*redis.IntCmd{}, map[int]*redis.IntCmd{}
	for p := range backlogs {
		outbox[p], dead[p] = pipe.XLen(ctx, n.keys.Outbox(p)), pipe.XLen(ctx, n.keys.Dead(p))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	out := []page.Partition{}
	for p := range n.keys.Partitions {
		b, ok := backlogs[p]
		if !ok {
			continue
		}
		failed = errors.Join(failed, outbox[p].Err(), dead[p].Err())
		out = append(out, page.Partition{Partition: p, LagMs: b.Oldest.Milliseconds(), Pending: b.Pending,
			Outbox: outbox[p].Val(), Dead: dead[p].Val()})
	}
	return out, failed
}

package redisclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// How often a command is sent again after an answer that says that it was not executed,
// and how long the waits between are: about half a second in total. If a command must
// succeed in any case (a fold, a read), its caller begins it again.
const (
	redirects     = 10
	redirectFirst = 10 * time.Millisecond
	redirectMost  = 100 * time.Millisecond
)

// NewCluster opens a client of a Redis Cluster that sends a command again only if
// the command certainly was not executed: the server's answer says so
// (MOVED, ASK, TRYAGAIN, CLUSTERDOWN and the like), or no connection could be made.
//
// go-redis sends commands again, whatever MaxRetries is: up to MaxRedirects times if
// a connection broke, and a whole pipeline if its first command was redirected or put
// off (redis/go-redis#1481, #2096). An append or a check would then count twice. So
// go-redis is configured to try once, and this package follows the redirects. go-redis
// also notices a failover only by redirects, which a dead master does not send (#3979).
// So this package reads the map of slots again after each broken connection.
func NewCluster(o *redis.ClusterOptions) *redis.ClusterClient {
	opts := *o
	opts.MaxRetries, opts.MaxRedirects = -1, -1
	// go-redis knows where the keys of all our commands are. The policies would need COMMAND.
	opts.DisableRoutingPolicies = true
	c := redis.NewClusterClient(&opts)
	r := &redirector{cluster: c, first: make(chan struct{}, 1)}
	c.OnNewNode(func(n *redis.Client) {
		r.nodes.Store(n.Options().Addr, n)
		n.AddHook(nodeHook(n.Options().Addr))
	})
	c.AddHook(r)
	return c
}

// redirector follows the redirects in the answers of nodes. It is a hook around
// go-redis's cluster client, which makes one attempt, and makes the client of each
// node that an answer names.
type redirector struct {
	cluster *redis.ClusterClient
	nodes   sync.Map      // address → *redis.Client
	known   atomic.Bool   // the map of slots has been read
	first   chan struct{} // one slot, for the command that reads it first
}

// mapWithin is how long a node may take to send the map of slots, before go-redis asks another node.
const mapWithin = time.Second

// nodeHook is around the client of one node, and holds its address.
type nodeHook string

// DialHook implements redis.Hook.
func (nodeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook bounds the time for the map of slots: go-redis asks one node after the other, in any order, and a node
// that is frozen would use up the time of the caller. So it gets at most half of the time that is left.
func (h nodeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.FullName() == "cluster slots" {
			within := mapWithin
			if deadline, ok := ctx.Deadline(); ok {
				within = min(within, time.Until(deadline)/2)
			}
			bounded, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			ctx = bounded
		}
		return h.withAddress(next(ctx, cmd))
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			cmd.SetErr(h.withAddress(cmd.Err()))
		}
		return h.withAddress(err)
	}
}

// withAddress adds the address to a timeout that does not have it.
func (h nodeHook) withAddress(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() && !strings.Contains(err.Error(), string(h)) {
		return fmt.Errorf("%s: %w", string(h), err)
	}
	return err
}

// start reads the map of slots before the first command. Otherwise each command that
// begins before go-redis has the map would read the map, all at the same time.
func (r *redirector) start(ctx context.Context) {
	if r.known.Load() {
		return
	}
	select {
	case r.first <- struct{}{}:
		defer func() { <-r.first }()
	case <-ctx.Done():
		return
	}
	if !r.known.Load() {
		// If it fails, the command fails too, with an error for the same reason.
		_, err := r.cluster.MasterForKey(ctx, "")
		r.known.Store(err == nil)
	}
}

// target is where a command is sent next; if node is nil, the map of slots says where.
type target struct {
	node *redis.Client
	ask  bool // the node is still importing the slot: send ASKING before the command
}

// next reports whether a command that was answered with err may be sent again, and where.
func (r *redirector) next(err error) (to target, again bool) {
	if addr, ok := redis.IsMovedError(err); ok {
		return target{node: r.node(addr)}, true
	}
	if addr, ok := redis.IsAskError(err); ok {
		node := r.node(addr)
		return target{node, node != nil}, true
	}
	var dial *net.OpError
	again = redis.IsTryAgainError(err) || redis.IsClusterDownError(err) || redis.IsLoadingError(err) ||
		redis.IsMasterDownError(err) || redis.IsReadOnlyError(err) || errors.As(err, &dial) && dial.Op == "dial"
	return target{}, again
}

func (r *redirector) node(addr string) *redis.Client {
	if i := strings.LastIndexByte(addr, ':'); i >= 0 {
		addr = net.JoinHostPort(strings.Trim(addr[:i], "[]"), addr[i+1:])
	}
	n, _ := r.nodes.Load(addr)
	c, _ := n.(*redis.Client)
	return c
}

// DialHook implements redis.Hook.
func (r *redirector) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (r *redirector) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return r.follow(ctx, []redis.Cmder{cmd}, func(ctx context.Context, _ []redis.Cmder) error {
			err := next(ctx, cmd)
			cmd.SetErr(err) // go-redis itself does that only after its hooks
			return err
		})
	}
}

// ProcessPipelineHook implements redis.Hook.
func (r *redirector) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return r.follow(ctx, cmds, next) }
}

// follow sends commands. The answer of each decides whether it is sent again. Commands that are sent to the same node
// keep their order. next sends commands to where the map of slots says.
func (r *redirector) follow(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
	r.start(ctx)
	err := next(ctx, cmds)
	left := cmds
	for attempt := 0; err != nil && attempt < redirects; attempt++ {
		var order []target
		groups := map[target][]redis.Cmder{}
		for _, cmd := range left {
			if cmd.Err() == nil {
				continue
			}
			r.reloadMap(ctx, cmd.Err())
			if to, again := r.next(cmd.Err()); again {
				if groups[to] == nil {
					order = append(order, to)
				}
				groups[to] = append(groups[to], cmd)
			}
		}
		if len(order) == 0 || groups[target{}] != nil && !wait(ctx, attempt) {
			break
		}
		left = nil
		for _, to := range order {
			for _, cmd := range groups[to] {
				cmd.SetErr(nil) // if the next answer is lost, the old one must not remain
			}
			left = append(left, groups[to]...)
			if to.node == nil {
				_ = next(ctx, groups[to]) // each command has its own error
			} else {
				send(ctx, to, groups[to])
			}
		}
	}
	for _, cmd := range cmds {
		if cmd.Err() != nil {
			return cmd.Err()
		}
	}
	return nil
}

// send sends commands to one node. Each command then has its own error.
func send(ctx context.Context, to target, cmds []redis.Cmder) {
	if len(cmds) == 1 && !to.ask {
		_ = to.node.Process(ctx, cmds[0]) // a blocking command has its own timeout, which a pipeline ignores
		return
	}
	pipe := to.node.Pipeline()
	for _, cmd := range cmds {
		if to.ask {
			_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "asking"))
		}
		_ = pipe.Process(ctx, cmd)
	}
	_, _ = pipe.Exec(ctx)
}

// reloadMap makes go-redis read the map of slots again if an error says that the map may
// have changed. go-redis reads it at most once in 200 ms.
func (r *redirector) reloadMap(ctx context.Context, err error) {
	var answered redis.Error
	switch {
	case !errors.As(err, &answered):
		if !errors.Is(err, context.Canceled) && !errors.Is(err, redis.ErrClosed) {
			r.cluster.ReloadState(ctx)
		}
	case redis.IsTryAgainError(err), redis.HasErrorPrefix(err, "ASK"): // the owner is the same
	default:
		if _, again := r.next(err); again {
			r.cluster.ReloadState(ctx)
		}
	}
}

// wait waits before the next attempt, and reports whether to make one. If the deadline
// is near, it returns false at once: the answer to another attempt would come too late.
func wait(ctx context.Context, attempt int) bool {
	return pause.BeforeDeadline(ctx, min(redirectFirst<<attempt, redirectMost))
}

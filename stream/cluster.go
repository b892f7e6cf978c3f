package stream

import (
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// NewCluster opens a client of a Redis Cluster for NewLog, counters.New and
// client/direct. It sends a command again only where the command certainly was not
// executed: the server's own answer says so (MOVED, ASK, TRYAGAIN, CLUSTERDOWN and the
// like), or no connection was to be had. go-redis's own also repeats what may have been
// executed, whatever MaxRetries is, and an append or a check would then count twice.
func NewCluster(o *redis.ClusterOptions) *redis.ClusterClient { return redisclient.NewCluster(o) }

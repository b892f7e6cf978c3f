package stream

import (
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// NewCluster opens a client of a Redis Cluster for NewLog, counters.New and
// client/direct. It sends a command again only if the command certainly was not
// executed: the server's answer says so (MOVED, ASK, TRYAGAIN, CLUSTERDOWN and the
// like), or no connection could be made. The client of go-redis also repeats commands
// that may have been executed, whatever MaxRetries is, and an append or a check would
// then count twice.
func NewCluster(o *redis.ClusterOptions) *redis.ClusterClient { return redisclient.NewCluster(o) }

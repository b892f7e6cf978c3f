package redisclient

import (
	"fmt"

	"github.com/redis/go-redis/v9"
)

// RequireNoRetry refuses a client that sends a command again by itself: an append
// or a check whose reply was lost would then count twice, and nobody would know.
// Whatever writes without a gate must ask it first. go-redis takes 0 for its
// default of 3 retries, and shows -1 as 0.
func RequireNoRetry(c redis.UniversalClient) error {
	n := 0
	switch c := c.(type) {
	case *redis.Client:
		n = c.Options().MaxRetries
	case *redis.ClusterClient:
		// A plain ClusterClient repeats commands up to MaxRedirects times, whatever MaxRetries is.
		n = max(c.Options().MaxRetries, c.Options().MaxRedirects)
	case *redis.Ring:
		n = c.Options().MaxRetries
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the Redis client sends a command up to %d times again: expected MaxRetries: -1, on a "+
		"Cluster stream.NewCluster, as what is sent twice counts twice", n)
}

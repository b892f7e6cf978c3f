package redisclient

import (
	"fmt"

	"github.com/redis/go-redis/v9"
)

// RequireNoRetry returns an error if the client repeats commands: an append or a check
// whose reply was lost would then count twice, without an error. Call it before any
// write that may not be sent twice. For go-redis, 0 means its default of 3 retries, and
// its Options show -1 as 0.
func RequireNoRetry(c redis.UniversalClient) error {
	n := 0
	switch c := c.(type) {
	case *redis.Client:
		n = c.Options().MaxRetries
	case *redis.ClusterClient:
		// A ClusterClient of go-redis repeats commands up to MaxRedirects times, whatever MaxRetries is.
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

package redisclient

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// RequireNoRetry returns an error if the client repeats commands: an append or a check
// whose reply was lost would then count twice, without an error. Call it before any
// write that may not be sent twice. For go-redis, 0 means its default of 3 retries, and
// its Options show -1 as 0.
func RequireNoRetry(c redis.UniversalClient) error {
	n, _ := optionsOf(c)
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the Redis client sends a command up to %d times again: expected MaxRetries: -1, on a "+
		"Cluster stream.NewCluster, as what is sent twice counts twice", n)
}

// RequireDeadlines returns an error if the client ignores the deadlines of contexts, as go-redis does by default. It
// would then wait for a silent server as long as its ReadTimeout says.
func RequireDeadlines(c redis.UniversalClient) error {
	if _, deadlines := optionsOf(c); !deadlines {
		return errors.New("the Redis client does not keep to deadlines: set ContextTimeoutEnabled")
	}
	return nil
}

// optionsOf returns how often a client sends a command again, and whether it keeps to the deadlines of contexts.
func optionsOf(c redis.UniversalClient) (again int, deadlines bool) {
	switch c := c.(type) {
	case *redis.Client:
		return c.Options().MaxRetries, c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		// A ClusterClient of go-redis repeats commands up to MaxRedirects times, whatever MaxRetries is.
		return max(c.Options().MaxRetries, c.Options().MaxRedirects), c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return c.Options().MaxRetries, c.Options().ContextTimeoutEnabled
	}
	return 0, true
}

package redisclient

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// RequireDeadlines returns an error if the client ignores the deadlines of contexts, as go-redis does by default. It
// would then wait for a silent server as long as its ReadTimeout says.
func RequireDeadlines(c redis.UniversalClient) error {
	enabled := true
	switch c := c.(type) {
	case *redis.Client:
		enabled = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		enabled = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		enabled = c.Options().ContextTimeoutEnabled
	}
	if !enabled {
		return errors.New("the Redis client does not keep to deadlines: set ContextTimeoutEnabled")
	}
	return nil
}

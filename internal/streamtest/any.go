package streamtest

import (
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"
)

// AnyRedis connects to the shared real Redis, or to an embedded one where this machine has no real one. It is
// for tests above the scripts, which do not prove again that those count alike on both.
func AnyRedis(t testing.TB) *redis.Client {
	t.Helper()
	_, err := exec.LookPath("redis-server")
	if err == nil || required() || os.Getenv(EnvRedisImage) != "" {
		return Connect(t, Redis(t))
	}
	return Connect(t, EmbeddedRedis(t).Addr())
}

package compare

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// exact are the algorithms of Names that admit what the limit allows, no more
// and no less.
func exact() []string {
	return slices.DeleteFunc(append(lua.Exact(), InProcess, Oracle),
		func(n string) bool {
			return n != Oracle && !slices.Contains(Names(), n)
		})
}

func ours(t *testing.T, c redis.UniversalClient) []string {
	t.Helper()
	names, err := c.Keys(t.Context(), "sc-compare-*").Result()
	testkit.Must(t, err)
	return names
}

func window(limit int64, per time.Duration) windows.Window {
	return windows.Window{Limit: limit, Per: per}
}

func result(t *testing.T, c *Comparison, name string) Result {
	t.Helper()
	for _, r := range c.Algorithms {
		if r.Algorithm == name {
			return r
		}
	}
	t.Fatalf("no result of %s", name)
	return Result{}
}

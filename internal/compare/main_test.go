package compare

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

var update = flag.Bool("update", false, "write the files of testdata anew")

// golden holds a text against a file of testdata.
func golden(t *testing.T, name, have string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		testkit.Must(t, os.WriteFile(path, []byte(have), 0o644))
	}
	want, err := os.ReadFile(path)
	testkit.Must(t, err)
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("%s (-want +have; go test ./internal/compare -update writes it):\n%s", path, diff)
	}
}

// exact are the algorithms of Names that admit what the limit allows, no more
// and no less.
func exact() []string {
	return slices.DeleteFunc([]string{"sliding-log", "sliding-log-zset", InProcess, Oracle}, func(n string) bool {
		return n != Oracle && !slices.Contains(Names(), n)
	})
}

// eachRedis runs a test on an embedded and on a real Redis.
func eachRedis(t *testing.T, test func(t *testing.T, c redis.UniversalClient)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { test(t, connect(t, "redis://"+streamtest.EmbeddedRedis(t).Addr())) })
	t.Run("redis", func(t *testing.T) { test(t, connect(t, streamtest.Redis(t))) })
}

func connect(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	opts, err := redis.ParseURL(url)
	testkit.Must(t, err)
	opts.MaxRetries = -1
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return c
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

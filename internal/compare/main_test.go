package compare

import (
	"fmt"
	"math/rand/v2"
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

// exact returns the algorithms of Names that admit exactly what the limit allows.
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

// poisson returns so many requests that arrive independently, at a rate per second, of keys that are chosen evenly.
func poisson(rate float64, requests, keys int) Trace {
	draw := rand.New(rand.NewPCG(1, 0))
	t := Trace{Name: "poisson", Requests: make([]Request, requests)}
	seconds := 0.0
	for i := range t.Requests {
		seconds += draw.ExpFloat64() / rate
		t.Requests[i] = Request{start + int64(seconds*1000), fmt.Sprintf("user:%d", 1+draw.IntN(keys)), 1, nil}
	}
	return t
}

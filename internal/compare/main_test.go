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

// Poisson is traffic of independent arrivals, for the tests.
type Poisson struct {
	Rate     float64 // requests per second of all keys together, above 0
	Requests int
	Keys     int   // they are chosen evenly; at least 1
	MaxCost  int64 // costs are chosen evenly from 1 to this; at least 1
	Seed     uint64
}

// Trace generates the requests. The same values generate the same trace.
func (p Poisson) Trace() Trace {
	draw := rand.New(rand.NewPCG(p.Seed, 0))
	t := Trace{Name: fmt.Sprintf("poisson: %g requests per second", p.Rate),
		Requests: make([]Request, p.Requests)}
	seconds := 0.0
	for i := range t.Requests {
		seconds += draw.ExpFloat64() / p.Rate
		t.Requests[i] = Request{start + int64(seconds*1000), fmt.Sprintf("user:%d", 1+draw.IntN(p.Keys)),
			1 + draw.Int64N(p.MaxCost), nil}
	}
	return t
}

package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// What can be measured.
const (
	Append = "append" // stream.Log.Append
	Fold   = "fold"   // read and windows.Redis.Fold, as a worker does
	Check  = "check"  // windows.Redis.Check of one key
	Peek   = "peek"   // windows.Redis.Peek
)

// Operations are the names of what can be measured, in the order of a run.
var Operations = []string{Append, Fold, Check, Peek}

// How keys are chosen.
const (
	Uniform = "uniform"
	Zipf    = "zipf"
)

// Config says what a run measures. The zero value is a run of everything with
// the defaults.
type Config struct {
	// Operations to measure, of Operations; none means all.
	Operations []string
	// Algorithms to measure, of windows.Algorithms; none means the default one.
	Algorithms []string
	// Keys is how many keys there are; default 1000.
	Keys int
	// Skew is Uniform (the default) or Zipf: the key of rank k is chosen with a
	// probability in proportion to (1+k)^-ZipfS.
	Skew string
	// ZipfS is above 1; default 1.1.
	ZipfS float64
	// Entries is how many entries of one unit each key has in its window before
	// anything is measured; default 0, with Deny 100.
	Entries int
	// Limit and Per are the one window of the rule; default 10^9 per minute, which
	// admits everything and stands near no threshold.
	Limit int64
	Per   time.Duration
	// Deny sets Limit to Entries, so that checks of an exact algorithm are denied.
	Deny bool
	// Connections is how many callers there are at once; default 8.
	Connections int
	// Count is how many operations each part measures; 0 means as many as fit
	// into Duration (default 3s). The yardsticks' come on top.
	Count    int
	Duration time.Duration
	// Warmup is how long each part runs before it is measured; default 500ms,
	// below 0: not at all.
	Warmup time.Duration
	// Batch is how many events an append sends in a pipeline and a fold reads at
	// most; default 500.
	Batch int
	// Rate is how many checks, and peeks, start per second whatever becomes of
	// the earlier ones (an open loop); 0 means a closed loop, in which each
	// connection's next call waits for its last one.
	Rate float64
	// Partitions is as in stream.Keys; default 16.
	Partitions int
	// Seed chooses the keys; default 1. The same seed chooses the same.
	Seed uint64
	// Progress hears what is being done and how much of the run is behind it,
	// from 0 to 1; nil means nobody does. It is not called from two goroutines at once.
	Progress func(part string, done float64)
}

// bounds that keep a slip of the finger from filling a server.
const (
	maxKeys    = 10_000_000
	maxEntries = 10_000_000
	maxCallers = 10_000
	maxBatch   = 10_000 // a fold of more would hold Redis up for a tenth of a second
)

func (c Config) withDefaults() Config {
	if len(c.Operations) == 0 {
		c.Operations = Operations
	}
	if len(c.Algorithms) == 0 {
		c.Algorithms = []string{windows.DefaultAlgorithm}
	}
	c.Keys, c.Skew, c.ZipfS = cmp.Or(c.Keys, 1000), cmp.Or(c.Skew, Uniform), cmp.Or(c.ZipfS, 1.1)
	c.Per = cmp.Or(c.Per, time.Minute)
	if c.Deny {
		c.Entries = cmp.Or(c.Entries, 100)
	}
	c.Connections, c.Batch = cmp.Or(c.Connections, 8), cmp.Or(c.Batch, 500)
	c.Duration, c.Warmup = cmp.Or(c.Duration, 3*time.Second), cmp.Or(c.Warmup, 500*time.Millisecond)
	c.Partitions, c.Seed = cmp.Or(c.Partitions, stream.DefaultPartitions), cmp.Or(c.Seed, 1)
	return c
}

// limit is the limit of the rule that is measured.
func (c *Config) limit() int64 {
	if c.Deny {
		return int64(c.Entries)
	}
	return cmp.Or(c.Limit, 1_000_000_000)
}

// Validate returns the first error, named by the flag of `streamcounter
// bench` and its value. Run does so too.
func (c Config) Validate() error {
	c = c.withDefaults()
	return c.validate()
}

func (c *Config) validate() error {
	for _, op := range c.Operations {
		if !slices.Contains(Operations, op) {
			return fmt.Errorf("operation %q: expected %s", op, strings.Join(Operations, ", "))
		}
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(windows.Algorithms, a) {
			return fmt.Errorf("--algorithm is %q: expected all or some of %s", a,
				strings.Join(windows.Algorithms, ", "))
		}
	}
	switch {
	case c.Skew != Uniform && c.Skew != Zipf:
		return fmt.Errorf("--skew is %q: expected %s or %s", c.Skew, Uniform, Zipf)
	case !(c.ZipfS > 1 && c.ZipfS <= 100): // also what is no number
		return fmt.Errorf("--zipf-s is %v: expected a number above 1, at most 100", c.ZipfS)
	case c.Deny && c.Limit != 0:
		return fmt.Errorf("--limit is %d and --deny is given: expected one of them, --deny makes --entries the limit",
			c.Limit)
	case c.limit() < 1 || c.limit() > windows.MaxLimit:
		return fmt.Errorf("--limit is %d: expected 1 to %d", c.Limit, windows.MaxLimit)
	case c.Per < windows.MinWindow || c.Per > windows.MaxWindow || c.Per%time.Millisecond != 0:
		return fmt.Errorf("--per is %s: expected %s to %s in whole milliseconds", c.Per, windows.MinWindow,
			windows.MaxWindow)
	case c.Duration < time.Millisecond:
		return fmt.Errorf("--duration is %s: expected at least 1ms", c.Duration)
	case !(c.Rate >= 0 && c.Rate <= 10_000_000):
		return fmt.Errorf("--rate is %v: expected checks per second up to 10000000, or 0 for a closed loop", c.Rate)
	}
	for _, n := range []struct {
		flag             string
		value, least, at int
	}{
		{"keys", c.Keys, 1, maxKeys}, {"entries", c.Entries, 0, maxEntries},
		{"connections", c.Connections, 1, maxCallers}, {"operations", c.Count, 0, 1 << 40},
		{"batch", c.Batch, 1, maxBatch}, {"partitions", c.Partitions, 1, stream.MaxPartitions},
	} {
		if n.value < n.least || n.value > n.at {
			return fmt.Errorf("--%s is %d: expected %d to %d", n.flag, n.value, n.least, n.at)
		}
	}
	return nil
}

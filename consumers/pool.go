package consumers

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// LargestBatch is the largest Config.MaxBatch: folding a batch of this size occupies Redis for 0.1 s, and the reply
// that contains it stays far below what a client of Redis may allocate.
const LargestBatch = 10_000

// Activity records what the Pool counts.
type Activity interface {
	// Events is called when events of one key were folded, with the sum of their units.
	Events(rule, key string, events, units int64)
	// Throttled receives the number of throttled keys of each rule, in the partitions that this process relays.
	Throttled(byRule map[string]int64)
}

// Config of a Pool. Redis, Blocking, Keys, Counter, Rules, Publisher and Metrics are required; zero elsewhere means
// the default.
type Config struct {
	// Redis serves all short commands; its client must not retry (MaxRetries: -1; on a Cluster stream.NewCluster).
	Redis redis.UniversalClient
	// Blocking serves the blocking reads: two connections on a single server
	// (events, outboxes), two per partition on a Cluster. Its read timeout must
	// be above Block.
	Blocking  redis.UniversalClient
	Keys      *stream.Keys
	Counter   *counters.Redis
	Rules     func() *windows.Rules // with the changes of operators (windows.Under)
	Publisher Publisher
	// Decisions returns the decisions that subscribers find; nil: decisions that were overwritten are not corrected.
	Decisions Decisions
	Metrics   *Metrics // required
	// Activity records what is folded by key, and how many keys are throttled; nil: nothing is recorded.
	Activity Activity

	// Consumer is this process's name in the group, unique among all that run;
	// default: host, process id and a random part.
	Consumer string
	// MaxBatch bounds the events of one fold; default 1,000, which take a few ms of Redis's time; at most
	// LargestBatch.
	MaxBatch int
	// ReadPause bounds the pause between two reads of events; default 0.3ms, below zero: none. There is no pause
	// while events come one by one, and none while a backlog drains.
	ReadPause time.Duration
	// Block is how long a read waits for events; default 1s. A stop waits that long.
	Block time.Duration
	// MinIdle is how long an event is pending before others take it over; default 10s.
	MinIdle time.Duration
	// Retention is how long events are kept; default stream.DefaultRetention.
	Retention time.Duration
	// SweepEvery bounds the wait between sweeps; default 100ms. No level ends later than that. While no key
	// has a level, the wait is the shortest hold of the rules, up to 1s. So a reservation shorter than 1s may expire
	// up to 1s late.
	SweepEvery time.Duration
	// LockTTL is how long other relays wait for the partitions of a relay that died; default 3s.
	LockTTL time.Duration
	// QuarantineFor is how long a partition stays quarantined before it is examined again; default 2s. A partition is
	// quarantined if one of its own keys has the wrong type.
	QuarantineFor time.Duration
	// GaugesEvery is how often the streams are measured; default 5s.
	GaugesEvery time.Duration
	// CompareEvery is how often throttle decisions are compared with Decisions; default 1m.
	CompareEvery time.Duration
	// DrainTimeout bounds a clean stop; default 5s. Its last fifth, at most 1s, is for giving back locks.
	DrainTimeout time.Duration
	// Tracer creates the spans of folds whose events came with a trace; nil: nothing is traced.
	Tracer trace.Tracer
	Log    *slog.Logger

	// For tests.
	// separately makes a separate script call for each partition, as on a Cluster.
	separately bool
	readPause  func(ctx context.Context, d time.Duration) (ok bool) // default pause.Exact
	onRescan   func()                                               // called before a walk over all keys begins
}

func (c Config) withDefaults() (Config, error) {
	if c.Redis == nil || c.Blocking == nil || c.Keys == nil || c.Counter == nil || c.Rules == nil ||
		c.Publisher == nil || c.Metrics == nil {
		return c, fmt.Errorf("consumers: Redis, Blocking, Keys, Counter, Rules, Publisher and Metrics are required")
	}
	if c.Consumer == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "host"
		}
		c.Consumer = fmt.Sprintf("%s-%d-%s", host, os.Getpid(), rand.Text()[:8])
	}
	c.MaxBatch = cmp.Or(c.MaxBatch, 1000)
	c.ReadPause = cmp.Or(c.ReadPause, 300*time.Microsecond)
	c.Block = cmp.Or(c.Block, time.Second)
	c.MinIdle = cmp.Or(c.MinIdle, 10*time.Second)
	c.Retention = cmp.Or(c.Retention, stream.DefaultRetention)
	c.SweepEvery = cmp.Or(c.SweepEvery, 100*time.Millisecond)
	c.LockTTL = cmp.Or(c.LockTTL, 3*time.Second)
	c.QuarantineFor = cmp.Or(c.QuarantineFor, 2*time.Second)
	c.GaugesEvery = cmp.Or(c.GaugesEvery, 5*time.Second)
	c.CompareEvery = cmp.Or(c.CompareEvery, time.Minute)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 5*time.Second)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.readPause == nil {
		c.readPause = pause.Exact
	}
	if c.MaxBatch < 1 || c.Block < 0 || c.MinIdle < 0 || c.SweepEvery < 0 || c.LockTTL < 0 || c.QuarantineFor < 0 ||
		c.CompareEvery < 0 || c.DrainTimeout < 0 {
		return c, fmt.Errorf("consumers: MaxBatch or a duration is negative in the configuration")
	}
	if c.MaxBatch > LargestBatch {
		return c, fmt.Errorf("consumers: MaxBatch is %d, expected at most %d", c.MaxBatch, LargestBatch)
	}
	return c, nil
}

// shared is what the parts of a Pool have in common.
type shared struct {
	Config
	lua        *lua.Caller
	outages    *outages
	quarantine *quarantine
	dead       *deadLetters
	turns      []sync.Mutex // partition → the lock of inTurn
	locks      *locks
	shards     [][]int // the partitions of each shard: on a Cluster, one server may be down while others answer
}

// inTurn makes all code that examines the levels of one partition by the rules run one after another within this
// process, each time with the rules that are in force when its turn comes. Otherwise code with the rules from before
// a reload could write after code with the new rules. (Other processes may have old rules for a while, hence
// recheckAfter.)
func (s *shared) inTurn(p int, look func(rules *windows.Rules) error) error {
	s.turns[p].Lock()
	defer s.turns[p].Unlock()
	return look(s.Rules())
}

// Pool runs the parts of one worker process.
type Pool struct {
	all       *shared
	worker    *worker
	sweeper   *sweeper
	relay     *relay
	comparer  *comparer
	gauges    *gauges
	throttled *throttledKeys
}

// NewPool checks the configuration and creates the parts; nothing runs yet.
func NewPool(c Config) (*Pool, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	all := &shared{Config: c, lua: lua.NewCaller(c.Redis), outages: newOutages(c.Log),
		turns: make([]sync.Mutex, c.Keys.Partitions), shards: eventlog.Shards(c.Redis, c.Keys.All())}
	all.quarantine = &quarantine{shared: all, until: map[int]time.Time{}}
	all.dead = &deadLetters{all}
	all.locks = &locks{shared: all, holds: map[int]*heldLock{}}
	sweeper := newSweeper(all)
	all.quarantine.onEnd = sweeper.Recheck // the rules may have changed during the quarantine
	return &Pool{
		all: all, worker: &worker{shared: all, overridden: &sweeper.overridden, raised: sweeper.raised},
		sweeper: sweeper, relay: &relay{all}, comparer: &comparer{all},
		gauges:    &gauges{shared: all, ahead: map[int]bool{}},
		throttled: &throttledKeys{shared: all, seen: map[string]bool{}},
	}, nil
}

// Recheck examines every key that has a level again: call it when the rules have changed.
func (p *Pool) Recheck() { p.sweeper.Recheck() }

// Run works until ctx ends, then stops in this order: it stops reading, folds the batches that it holds, and
// publishes the transitions that these folds wrote to the outbox. All of this is within one drain timeout.
func (p *Pool) Run(ctx context.Context) {
	work, cancel := drainContext(ctx, p.all.DrainTimeout-p.all.releaseTime())
	defer cancel()
	relayCtx, stopRelay := context.WithCancel(work)
	defer stopRelay()
	lockCtx, stopLocks := context.WithCancel(work)
	defer stopLocks()
	var rest, relay, locks sync.WaitGroup
	locks.Go(func() { p.all.locks.run(lockCtx) })
	for _, parts := range p.all.shards { // separate loops, because a fold is tried until its server answers
		relay.Go(func() { p.relay.run(relayCtx, work, parts) })
		rest.Go(func() { p.worker.run(ctx, work, parts) })
		rest.Go(func() { p.worker.takeOver(ctx, work, parts) })
	}
	rest.Go(func() { p.sweeper.run(ctx) })
	rest.Go(func() { p.gauges.run(ctx) })
	rest.Go(func() { p.comparer.run(ctx) })
	rest.Go(func() { p.throttled.run(ctx) })
	rest.Wait()
	stopRelay()
	relay.Wait()
	stopLocks()
	locks.Wait()
}

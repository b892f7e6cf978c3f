package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/subscription"
)

// Config: zero values are defaults.
type Config struct {
	// Prefix of the subjects; default "sc".
	Prefix string
	// Rules are the names of the rules whose decisions are received; none means all. Blocks by an operator are
	// received in either case.
	Rules []string
	// MaxKeys bounds how many decisions are held; default 2,000,000, at some 300 bytes each. If a key becomes
	// throttled when the bound is reached, it is not held, so it passes; Stats.Refused counts such keys.
	MaxKeys int
	// OnChange is called when a key becomes throttled or free, one call at a time, in order. It never holds up the
	// guard: at most ChangeQueue (default 65,536) changes wait for it. Further changes are dropped and counted in
	// Stats.ChangesDropped; All has the current state.
	OnChange    func(Change)
	ChangeQueue int
	// Log receives problems; default slog.Default().
	Log *slog.Logger
	// Now replaces the clock in tests, in ms since 1970.
	Now func() int64
}

// Change is what OnChange receives.
type Change struct {
	api.Transition        // its State is throttled or released
	Reason         Reason // why
}

// Reason of a change.
type Reason string

// The reasons.
const (
	Decided Reason = "decided" // a message said so
	Expired Reason = "expired" // no renewal came in time
	Missing Reason = "missing" // it is not in a new snapshot: its end was missed
)

// Guard finds out which keys are throttled without a call to a server. It subscribes to throttle decisions on NATS:
// first the snapshot of the keys that are throttled now, then each change. If the connection was lost, it takes a new
// snapshot, and releases keys that are not in it.
//
// Times in decisions are by Redis's clock, and are compared with this machine's clock. If this clock is ahead by more
// than 5 s, keys can be released here before they are renewed. If it is behind, keys whose end the guard never
// receives are held longer by the difference.
type Guard struct {
	config Config
	nc     *nats.Conn

	table    *table
	held     *held
	clock    atomic.Int64 // ms, renewed while Run runs; 0 before and after
	answered atomic.Int64 // when NATS last answered: ns since started
	started  time.Time
	running  atomic.Bool
	ready    chan struct{} // closed when the first snapshot is in
	changes  chan Change   // nil without OnChange
	waiting  waiting       // the channels that releases are sent to
	counts   counts

	// Only the writer uses these.
	snapshot      uint64     // counts snapshots
	complete      bool       // the current snapshot has been read
	malformedSeen bool       // a malformed message came since it began: it may lack decisions
	resyncAt      int64      // when to ask for a new snapshot because of that, in ms; 0: no need
	resyncWait    int64      // how long to wait before that, in ms; it doubles
	resync        chan error // to the session: ask for a new snapshot
	sweepAt       int        // the next shard to sweep
}

const defaultMaxKeys = 2_000_000

// Connect opens a connection to NATS for a Guard, even if no server answers yet. url is a URL of a server, or several
// separated by commas (nats:// or tls://). The connection comes back whatever the server answers. The library alone
// would close it for good after a wrong password. What is read from the connection is bounded. Its errors go to
// slog.Default, shortened and at a bounded rate. Options that are given replace those of this function.
func Connect(url string, options ...nats.Option) (*nats.Conn, error) {
	nc, err := natsconn.Connect(natsconn.Config{URL: url, Name: "streamcounter guard", Wait: true}, options...)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	return nc, nil
}

// New makes a Guard that receives decisions over a connection of the caller. Connect opens one that always comes
// back. deploy/nats-permissions.conf has the rights that a Guard needs. The Guard has no decisions until Run runs;
// see Ready.
func New(nc *nats.Conn, c Config) (*Guard, error) {
	if nc == nil {
		return nil, errors.New("guard: a NATS connection is required")
	}
	c.Prefix = cmp.Or(c.Prefix, "sc")
	c.MaxKeys = cmp.Or(c.MaxKeys, defaultMaxKeys)
	c.ChangeQueue = cmp.Or(c.ChangeQueue, 1<<16)
	c.Log = cmp.Or(c.Log, slog.Default())
	if c.MaxKeys < 1 || c.ChangeQueue < 1 {
		return nil, fmt.Errorf("guard: MaxKeys %d, ChangeQueue %d: expected at least 1 each", c.MaxKeys, c.ChangeQueue)
	}
	if c.Now == nil {
		c.Now = func() int64 { return time.Now().UnixMilli() }
	}
	for _, name := range append([]string{c.Prefix}, c.Rules...) {
		if err := subscription.ValidateToken(name); err != nil {
			return nil, fmt.Errorf("guard: %w", err)
		}
	}
	g := &Guard{
		config: c, nc: nc, table: newTable(), held: newHeld(), waiting: waiting{keys: map[string][]chan struct{}{}},
		started: time.Now(), ready: make(chan struct{}), resync: make(chan error, 1),
	}
	if c.OnChange != nil {
		g.changes = make(chan Change, c.ChangeQueue)
	}
	return g, nil
}

// Throttled reports whether the key is over a limit now. It takes no lock and
// allocates nothing. It compares 64-bit hashes: see Lookup.
func (g *Guard) Throttled(key string) bool {
	untilMs := g.table.until(key)
	return untilMs != 0 && g.now() < untilMs
}

// Lookup returns the decision that throttles the key, with its limit and its end. If there are several, it returns
// the one that ends last. The decision has no ID. Lookup compares the key itself.
func (g *Guard) Lookup(key string) (api.Transition, bool) {
	if !g.Throttled(key) {
		return api.Transition{}, false
	}
	return g.held.shard(g.table.hash(key)).lookup(key, g.now())
}

// All returns the decisions that are in effect now, in no order.
func (g *Guard) All() iter.Seq[api.Transition] { return g.held.all(g.now()) }

// now returns the time. While Run runs, it is a time that Run renews every tickEvery, because reading the machine's
// clock costs as much as the rest of Throttled.
func (g *Guard) now() int64 {
	if ms := g.clock.Load(); ms != 0 {
		return ms
	}
	return g.config.Now()
}

// Ready waits until the first snapshot is in. Before that, the guard does not have all throttled keys.
func (g *Guard) Ready(ctx context.Context) error {
	select {
	case <-g.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("guard: the guard has no snapshot yet: %w", ctx.Err())
	}
}

// Staleness returns how long ago NATS last answered. It is below 3 s while all is well, even if nothing happens. It
// grows while NATS is away or its stream does not exist. Then keys are released when they expire, and no further key
// is throttled.
func (g *Guard) Staleness() time.Duration {
	return time.Since(g.started) - time.Duration(g.answered.Load())
}

func (g *Guard) recordAnswer() { g.answered.Store(int64(time.Since(g.started))) }

// Stats are counts since the start, and what is held now.
type Stats struct {
	Throttled int64 // keys in the table, including expired ones that were not swept yet
	Held      int64 // decisions, including ended ones that are kept because of late copies
	Applied   int64 // messages that changed something
	Old       int64 // messages older than what was known
	Malformed int64 // messages that are not throttle decisions
	Refused   int64 // keys that were not held because of MaxKeys
	Snapshots int64 // snapshots taken, including the first
	// ChangesDropped is how many changes OnChange did not receive.
	ChangesDropped int64
}

type counts struct {
	throttled, held, applied, old, malformed, refused, snapshots, dropped atomic.Int64
}

// Stats may be called at any time.
func (g *Guard) Stats() Stats {
	c := &g.counts
	return Stats{
		Throttled: c.throttled.Load(), Held: c.held.Load(), Applied: c.applied.Load(), Old: c.old.Load(),
		Malformed: c.malformed.Load(), Refused: c.refused.Load(), Snapshots: c.snapshots.Load(),
		ChangesDropped: c.dropped.Load(),
	}
}

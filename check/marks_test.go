package check

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// hookedMarks call a function when they were read, before the reader receives them. It may make the reading fail.
type hookedMarks struct {
	marks
	then func() error
}

func (m hookedMarks) Freed(ctx context.Context, parts []int) ([]string, error) {
	got, err := m.marks.Freed(ctx, parts)
	return got, errors.Join(err, m.then())
}

var errNoMarks = errors.New("no")

// A caller that asks more rarely than marks are valid costs Redis a reading of marks, and not a check.
func TestADenialWhoseMarkIsOldAwaitsIt(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	asked()
	for range 100 {
		*clock += 50
		if a := p.ask(t, 1); a.Allowed || a.RetryAfterMs != 1_700_000_060_000-*clock {
			t.Fatalf("%+v", a)
		}
	}
	if n := asked(); n < 4 || n > 7 {
		t.Errorf("Redis was asked %d times in 5 s", n)
	}
	*clock += 50
	_, err := p.other.Reset(t.Context(), p.rules.Match("user:1"), "user:1")
	testkit.Must(t, err)
	if a := p.ask(t, 1); !a.Allowed {
		t.Errorf("after a reset by another process: %+v", a)
	}
}

// However lately other marks were read, those that a call waits for are read at once.
func TestOldMarksAreReadAtOnce(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	other := "user:2"
	for i := 3; p.config.Counter.Partition(other) == p.config.Counter.Partition("user:1"); i++ {
		other = fmt.Sprint("user:", i)
	}
	p.CheckEach(t.Context(), []api.CheckRequest{{Key: other, Cost: 10}})
	for range 10 { // until its mark is known too
		p.CheckEach(t.Context(), []api.CheckRequest{{Key: other}})
		*clock += 7
	}
	asked()
	for i := range 100 {
		*clock += 5
		p.ask(t, 1)
		if i%15 != 0 {
			continue
		}
		if a, err := p.Check(t.Context(), api.CheckRequest{Key: other}); err != nil || a.Source != api.SourceCache {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if n := asked(); n != 0 {
		t.Errorf("Redis was asked %d times", n)
	}
}

// If a call has several old denials, the first one whose mark is known is enough.
func TestACallOfSeveralOldDenials(t *testing.T) {
	p, clock, asked := one(t)
	reqs := []api.CheckRequest{{Key: "user:2", Cost: 10}, {Key: "user:3", Cost: 10}, {Key: "user:4", Cost: 10}}
	for range 5 {
		p.CheckEach(t.Context(), reqs)
		*clock++
	}
	*clock += 50
	asked()
	all, err := p.CheckAll(t.Context(), reqs)
	testkit.Must(t, err)
	known := 0
	for _, a := range all.Checks {
		known += len(a.Windows)
	}
	if asked() != 0 || all.Allowed || known == 0 {
		t.Errorf("%+v", all)
	}
}

// A reading of marks decides for calls that came before it, however long it takes. For later calls it decides while
// it is less than freshFor old.
func TestAReadingThatTakesLong(t *testing.T) {
	p, clock, _ := one(t)
	p.known(t, clock)
	*clock += 50
	came := p.denials.now()
	p.denials.counter = hookedMarks{p.denials.counter, func() error {
		*clock += freshFor.Milliseconds()
		_, err := p.other.Reset(t.Context(), p.rules.Match("user:1"), "user:1")
		return err
	}}
	request := counters.Request{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 1}
	if reading, _ := p.denials.await(request, came); reading == nil {
		t.Error("the mark is not read")
	}
	if _, known := p.denials.lookup(request, came); known != certain {
		t.Error("it was denied when the call came")
	}
	if _, known := p.denials.lookup(request, came.Add(time.Millisecond)); known == certain {
		t.Error("denied, though the mark was read before the call came, and too long ago")
	}
}

// A caller that waits until the denial has ended was denied when it came, and must wait for a millisecond at least.
func TestADenialThatEndsWhileItsMarkIsRead(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	for *clock = 1_700_000_059_500; *clock < 1_700_000_059_950; *clock += 5 {
		p.ask(t, 1)
	}
	*clock = 1_700_000_059_990
	p.denials.counter = hookedMarks{p.denials.counter, func() error { *clock += 20; return nil }}
	asked()
	if a := p.ask(t, 1); a.Allowed || a.RetryAfterMs < 1 || a.RetryAfterMs > 2 || asked() != 0 {
		t.Errorf("%+v", a)
	}
	if a := p.ask(t, 1); !a.Allowed {
		t.Errorf("%+v", a)
	}
}

// holdMarks makes readings of marks fail, with the end of the test and not before.
func (p *process) holdMarks(t *testing.T) {
	begun, ends := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(ends) })
	p.denials.counter = hookedMarks{p.denials.counter, func() error {
		close(begun)
		<-ends
		return errNoMarks
	}}
	p.denials.start = func(read func()) {
		go read()
		<-begun
	}
}

// asksRedis expects that each check of three is decided by Redis.
func (p *process) asksRedis(t *testing.T, clock *int64, asked func() int) {
	t.Helper()
	p.holdMarks(t)
	asked()
	for range 3 {
		*clock += 50
		if a := p.ask(t, 1); a.Allowed || a.Source != api.SourceRedis {
			t.Errorf("%+v", a)
		}
	}
	if n := asked(); n != 3 {
		t.Errorf("Redis was asked %d times of 3", n)
	}
}

// No call waits for marks that could not be read the last time. The check goes to Redis, which may work.
func TestNobodyWaitsForMarksThatCannotBeRead(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	p.denials.counter = hookedMarks{p.denials.counter, func() error { return errNoMarks }}
	*clock += 50
	p.ask(t, 1)
	p.asksRedis(t, clock, asked)
}

// A call waits for marks that do not come for only a part of the time that a check may take. Then the check goes to
// Redis, which may work.
func TestMarksThatDoNotCome(t *testing.T) {
	p, clock, asked := one(t)
	p.known(t, clock)
	p.asksRedis(t, clock, asked)
	*clock += 50
	request := counters.Request{Plan: p.rules.Match("user:1"), Key: "user:1", Cost: 1}
	if reading, _ := p.denials.await(request, p.denials.now()); reading != nil {
		t.Error("a reading is awaited that began 200 ms ago")
	}
}

// marksOfShards makes each partition a shard, of which one does not answer.
type marksOfShards struct {
	marks
	silent int
	ends   <-chan struct{}
}

func (m *marksOfShards) Shards() int          { return m.Partitions() }
func (m *marksOfShards) Shard(key string) int { return m.Partition(key) }

func (m *marksOfShards) Freed(ctx context.Context, parts []int) ([]string, error) {
	if parts[0] == m.silent {
		<-m.ends
	}
	return m.marks.Freed(ctx, parts)
}

// A call has two keys. One is denied for certain, although the marks of the other key's shard do not come.
func TestAShardWhoseMarksDoNotCome(t *testing.T) {
	for _, silent := range []string{"user:1", "user:2"} {
		p, clock, asked := one(t)
		ends := make(chan struct{})
		defer close(ends)
		shards := &marksOfShards{p.denials.counter, -1, ends}
		p.denials.counter, p.denials.shards = shards, make([]shardMarks, shards.Shards())
		if shards.Shard("user:1") == shards.Shard("user:2") {
			t.Fatal("they are in one shard")
		}
		reqs := []api.CheckRequest{{Key: "user:1"}, {Key: "user:2", Cost: 10}}
		for range 6 { // until both marks are known
			p.CheckEach(t.Context(), reqs)
			*clock += 10
		}
		*clock += 50
		shards.silent = shards.Shard(silent)
		p.denials.start = func(read func()) { go read() }
		asked()
		all, err := p.CheckAll(t.Context(), reqs)
		if n := asked(); err != nil || all.Allowed || n != 0 || all.Checks[0].Source != api.SourceCache {
			t.Errorf("the shard of %s is silent: Redis was asked %d times, %+v, %v", silent, n, all, err)
		}
	}
}

// Calls that do not wait for marks, and calls that are decided without them, cause no reading before it is due.
func TestMarksThatNobodyAwaits(t *testing.T) {
	p, clock, _ := one(t)
	reqs := make([]api.CheckRequest, p.config.Counter.Partitions()) // one in each
	for i, n := 0, 0; n < len(reqs); i++ {
		key := fmt.Sprint("user:", i)
		if at := p.config.Counter.Partition(key); reqs[at].Key == "" {
			reqs[at], n = api.CheckRequest{Key: key, Cost: 10}, n+1
		}
	}
	for range 6 { // until all marks are known
		p.CheckEach(t.Context(), reqs)
		*clock += 10
	}
	readings := 0
	p.denials.counter = hookedMarks{p.denials.counter, func() error { readings++; return nil }}
	for i := range 100 { // each is old when it is asked for
		*clock += 10
		p.CheckEach(t.Context(), reqs[i%8:i%8+1])
	}
	if readings > 34 {
		t.Errorf("marks were read %d times in a second", readings)
	}
	*clock += 50
	if a, err := p.Check(t.Context(), reqs[0]); err != nil || a.Source != api.SourceCache {
		t.Errorf("%+v, %v", a, err)
	}
	*clock += 10
	readings = 0
	if all, err := p.CheckAll(t.Context(), []api.CheckRequest{reqs[1], reqs[0]}); err != nil || all.Allowed {
		t.Errorf("%+v, %v", all, err)
	}
	if readings > 0 {
		t.Error("marks were read of one key, and the other was enough")
	}
}

package check

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/streamcounter/streamcounter/api"
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

// holdMarks makes readings of marks fail, with the end of the test and not before.
func holdMarks(t *testing.T, d *denials) {
	begun, ends := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(ends) })
	d.counter = hookedMarks{d.counter, func() error {
		close(begun)
		<-ends
		return errNoMarks
	}}
	d.start = func(read func()) {
		go read()
		<-begun
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
		l, p, asked := spent(t)
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
			l.clock += 10
		}
		l.clock += 50
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
	l, p, _ := spent(t)
	reqs := make([]api.CheckRequest, p.config.Counter.Partitions()) // one in each
	for i, n := 0, 0; n < len(reqs); i++ {
		key := fmt.Sprint("user:", i)
		if at := p.config.Counter.Partition(key); reqs[at].Key == "" {
			reqs[at], n = api.CheckRequest{Key: key, Cost: 10}, n+1
		}
	}
	for range 6 { // until all marks are known
		p.CheckEach(t.Context(), reqs)
		l.clock += 10
	}
	readings := 0
	p.denials.counter = hookedMarks{p.denials.counter, func() error { readings++; return nil }}
	for i := range 100 { // each is old when it is asked for
		l.clock += 10
		p.CheckEach(t.Context(), reqs[i%8:i%8+1])
	}
	if readings > 34 {
		t.Errorf("marks were read %d times in a second", readings)
	}
	l.clock += 50
	if a, err := p.Check(t.Context(), reqs[0]); err != nil || a.Source != api.SourceCache {
		t.Errorf("%+v, %v", a, err)
	}
	l.clock += 10
	readings = 0
	if all, err := p.CheckAll(t.Context(), []api.CheckRequest{reqs[1], reqs[0]}); err != nil || all.Allowed {
		t.Errorf("%+v, %v", all, err)
	}
	if readings > 0 {
		t.Error("marks were read of one key, and the other was enough")
	}
}

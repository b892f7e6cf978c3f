package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/stream"
)

// Keys that begin with b: have a window of seconds, so they rise and fall all the
// time, also while the clock steps and relays lose their lock.
const (
	burstLimit = 10
	burstPer   = 3 * time.Second
	pulses     = 40 // keys of pulse
)

// pulse raises one key after another above its limit; each falls by itself.
func (d *driver) pulse(ctx context.Context, seed uint64) {
	log, random := d.log(), rand.New(rand.NewPCG(seed, 400))
	numbers := map[string]int64{}
	for pause.For(ctx, 100*time.Millisecond) {
		key := fmt.Sprintf("b:pulse:%d", random.IntN(pulses))
		numbers[key] = max(burstLimit, numbers[key]+1)
		d.append(log, []api.Event{{Key: key, Count: numbers[key]}})
	}
}

// late begins, all the time, the story of a key whose event comes late. name tells its keys from those of other calls.
func (d *driver) late(ctx context.Context, name string, seed uint64) {
	log, random := d.log(), rand.New(rand.NewPCG(seed, 500))
	var stories sync.WaitGroup
	for n := 0; pause.For(ctx, 100*time.Millisecond); n++ {
		key, left := fmt.Sprintf("b:late:%s:%d", name, n), time.Duration(200+random.IntN(600))*time.Millisecond
		stories.Go(func() { d.lateEvent(ctx, log, key, left) })
	}
	stories.Wait()
}

// lateAtRest tells more such stories, if no key has crossed its limit twice at one millisecond. On a busy machine all
// stories of the load can end in another way.
func (d *driver) lateAtRest(tap *tap, seed uint64) {
	for n := 0; n < 12 && tap.crossedTwice() == 0; n++ {
		ctx, cancel := context.WithTimeout(context.Background(), 2*burstPer)
		d.late(ctx, fmt.Sprint("rest", n), seed)
		cancel()
	}
}

// lateEvent appends three events. The second is read by a worker that dies with
// it, so it is counted when it is claimed, which is after the first has left the
// window: the key stood at its limit by the first and the third, fell, and crosses
// the limit once more at the very millisecond of the third.
func (d *driver) lateEvent(ctx context.Context, log *stream.Log, key string, left time.Duration) {
	d.append(log, []api.Event{{Key: key, Count: 4}})
	if !pause.For(ctx, burstPer-left) {
		return
	}
	d.appendToTheDead(ctx, api.Event{Key: key, Count: 5})
	d.append(log, []api.Event{{Key: key, Count: 6}})
}

// readByTheDead appends an event, and lets a consumer that never counts it read it. ARGV[4] and later are more fields
// of the event. One step does both: a worker that waits for events would read it first.
var readByTheDead = redis.NewScript(`
	local id = redis.call('XADD', KEYS[1], '*', 'key', ARGV[1], 'count', ARGV[2], unpack(ARGV, 4))
	redis.call('XREADGROUP', 'GROUP', ARGV[3], 'dead', 'COUNT', '1000', 'STREAMS', KEYS[1], '>')
	return id`)

func (d *driver) appendToTheDead(ctx context.Context, e api.Event) {
	events := d.s.keys.Events(d.s.keys.Partition(e.Key))
	// By EVAL: it is not sent again where the reply says that the script is unknown.
	err := readByTheDead.Eval(context.WithoutCancel(ctx), d.s.admin, []string{events}, e.Key, e.Count,
		eventlog.Group).Err()
	d.noteOne(e.Key, e.Count, err)
}

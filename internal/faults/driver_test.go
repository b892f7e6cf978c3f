package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// record is what the driver knows for certain. Each event of a key has a count
// that no other of it has, its number: so no two share an entry of the key's
// log, and the log says which events were counted.
type record struct {
	mu      sync.Mutex
	acked   map[string]map[int64]bool // key → numbers that Redis said it has
	unknown map[string]map[int64]bool // key → numbers without an answer
	excused map[string]map[int64]bool // key → numbers not yet counted when their stream was deleted
	allowed map[string]int64          // key → units that checks were granted
	maybe   map[string]int64          // key → units of checks without an answer
	denied  int64
	touched map[string]map[int64]*touch // key → number → its value
	denials []denial
	ledger  *ledger // what holders have at once
}

func newRecord() *record {
	return &record{acked: map[string]map[int64]bool{}, unknown: map[string]map[int64]bool{},
		excused: map[string]map[int64]bool{}, allowed: map[string]int64{}, maybe: map[string]int64{},
		touched: map[string]map[int64]*touch{},
		ledger:  newLedger()}
}

// granted is how many units checks were granted.
func (r *record) granted() (units int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range maps.Values(r.allowed) {
		units += n
	}
	return units
}

// fullest is the largest sum that Redis has of the events of one key.
func (r *record) fullest() (most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, numbers := range r.acked {
		var sum int64
		for n := range numbers {
			if !r.excused[key][n] {
				sum += n
			}
		}
		most = max(most, sum)
	}
	return most
}

func eventOf(key string, n int64) api.Event { return api.Event{Key: key, Count: n} }

func note(m map[string]map[int64]bool, e api.Event) {
	if m[e.Key] == nil {
		m[e.Key] = map[int64]bool{}
	}
	m[e.Key][e.Count] = true
}

// driver is the load.
type driver struct {
	s      *system
	record *record
	events atomic.Int64 // acknowledged
	checks atomic.Int64 // answered
	errors atomic.Int64 // appends and checks without an answer
	holds  atomic.Int64 // reservations granted
	again  atomic.Int64 // checks with an idempotency key that have their answer
	// operated are checks of a key whose override did not change meanwhile, moved are
	// grants of a rule that is reloaded in other forms, valued are grants of one that counts values.
	operated, reloads, moved, leased, valued atomic.Int64
}

// keysAtATime are written to before the next generation of keys takes over, so
// that levels are crossed throughout the run.
const keysAtATime = 40

// start drives until stop, or until the test ends; stop returns when what is under way has come to its end.
func (d *driver) start(seed uint64) (stop func()) {
	return testkit.Background(d.s.t, func(ctx context.Context) { d.run(ctx, seed) })
}

// newClient returns a client with connections of its own.
func newClient() *http.Client {
	return &http.Client{Timeout: time.Second, Transport: &http.Transport{}}
}

// loop calls do until ctx ends, each time after a pause of `least` ms and up to `more` ms in addition.
func loop(ctx context.Context, random *rand.Rand, least, more int, do func(*http.Client)) {
	client := newClient()
	defer client.CloseIdleConnections()
	for pause.For(ctx, time.Duration(least+random.IntN(more))*time.Millisecond) {
		do(client)
	}
}

// run drives until ctx ends, and lets what is under way come to its end.
func (d *driver) run(ctx context.Context, seed uint64) {
	var load sync.WaitGroup
	load.Go(func() { d.produce(ctx, "e", seed) })
	load.Go(func() { d.repeat(ctx, seed) })
	load.Go(func() { d.pulse(ctx, seed) })
	load.Go(func() { d.late(ctx, "load", seed) })
	load.Go(func() { d.appendValues(ctx, seed) })
	for i, a := range d.s.askers() {
		load.Go(func() { d.check(ctx, a, rand.New(rand.NewPCG(seed, uint64(i)))) })
		if a.values {
			load.Go(func() { d.checkValues(ctx, a, rand.New(rand.NewPCG(seed, 800+uint64(i)))) })
		}
	}
	for i := range uint64(holders) {
		load.Go(func() { d.hold(ctx, rand.New(rand.NewPCG(seed, 1000+i))) })
	}
	for i := range uint64(3) {
		load.Go(func() { d.askAgain(ctx, rand.New(rand.NewPCG(seed, 2000+i))) })
	}
	for i := range uint64(operatedKeys) {
		h, key := &hand{}, fmt.Sprintf("o:%d", i)
		h.set("")
		load.Go(func() { d.operate(ctx, key, h, rand.New(rand.NewPCG(seed, 3000+i))) })
		load.Go(func() { d.checkOperated(ctx, key, h, rand.New(rand.NewPCG(seed, 4000+i))) })
		load.Go(func() { d.checkMoving(ctx, rand.New(rand.NewPCG(seed, 5000+i))) })
	}
	for i := range uint64(8) {
		load.Go(func() { d.checkLeased(ctx, rand.New(rand.NewPCG(seed, 7000+i))) })
	}
	load.Go(func() { d.reload(ctx, rand.New(rand.NewPCG(seed, 6000))) })
	load.Wait()
}

// loaded reports whether Redis has answered each kind of load, and whether a key is above its limit.
func (d *driver) loaded() (bool, string) {
	counted, units, holds, again := d.record.fullest(), d.record.granted(), d.holds.Load(), d.again.Load()
	return counted > eventLimit && units > 0 && holds > 0 && again > 0, fmt.Sprintf(
		"%d in a key, %d units, %d reservations, %d checks with an idempotency key", counted, units, holds, again)
}

func (d *driver) log() *stream.Log {
	log, err := stream.NewLog(d.s.producer(), d.s.keys, 10*time.Minute)
	if err != nil {
		d.s.t.Fatal(err)
	}
	return log
}

// produce appends events once each, whatever becomes of them.
func (d *driver) produce(ctx context.Context, form string, seed uint64) {
	log, random := d.log(), rand.New(rand.NewPCG(seed, 100))
	numbers := map[string]int64{}
	for n := 0; pause.For(ctx, 20*time.Millisecond); n++ {
		var batch []api.Event
		for range 1 + random.IntN(40) {
			key := fmt.Sprintf("%s:%d:%d", form, n/150, random.IntN(keysAtATime))
			numbers[key]++
			batch = append(batch, api.Event{Key: key, Count: numbers[key]})
		}
		d.append(log, batch)
	}
}

func (d *driver) append(log *stream.Log, batch []api.Event) {
	out := appendTo(log, batch)
	d.note(batch, out.Unknown, out.Refused)
}

func appendTo(log *stream.Log, batch []api.Event) stream.Outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return log.Append(ctx, batch)
}

// note records what became of a batch: Redis said that it has what is neither unknown nor refused.
func (d *driver) note(batch, unknown, refused []api.Event) {
	d.record.mu.Lock()
	defer d.record.mu.Unlock()
	lost := map[string]bool{}
	for _, e := range slices.Concat(unknown, refused) {
		lost[fmt.Sprint(e)] = true
	}
	for _, e := range unknown {
		note(d.record.unknown, e)
	}
	for _, e := range batch {
		if !lost[fmt.Sprint(e)] {
			note(d.record.acked, e)
		}
	}
	d.events.Add(int64(len(batch) - len(lost)))
	d.errors.Add(int64(len(lost)))
}

// noteOne records an event, or a check that is numbered as an event is; it is unknown if there was an error.
func (d *driver) noteOne(key string, number int64, err error) {
	one := []api.Event{eventOf(key, number)}
	if err != nil {
		d.note(one, one, nil)
		return
	}
	d.note(one, nil, nil)
}

// repeat appends each event, with an id, until Redis says that it has it.
func (d *driver) repeat(ctx context.Context, seed uint64) {
	log, random := d.log(), rand.New(rand.NewPCG(seed, 200))
	numbers := map[string]int64{}
	for n := 0; pause.For(ctx, 50*time.Millisecond); n++ {
		var left []api.Event
		for range 1 + random.IntN(10) {
			key := fmt.Sprintf("r:%d:%d", n/100, random.IntN(10))
			numbers[key]++
			left = append(left, api.Event{Key: key, Count: numbers[key], ID: fmt.Sprint("id ", numbers[key])})
		}
		all := left
		if random.IntN(5) == 0 { // as if an answer had been lost, which it seldom is just here
			appendTo(log, all)
		}
		for len(left) > 0 {
			out := appendTo(log, left)
			left = append(out.Refused, out.Unknown...)
			if len(left) > 0 && !pause.For(ctx, 50*time.Millisecond) {
				break
			}
		}
		d.note(all, left, nil) // what is left is unknown: the end came between
	}
}

// check asks the server, and records what it was granted.
func (d *driver) check(ctx context.Context, asker asker, random *rand.Rand) {
	for pause.For(ctx, 10*time.Millisecond) {
		var checks []check
		for range 1 + random.IntN(asker.most) {
			c := check{key: fmt.Sprintf("c:%d", random.IntN(3)), cost: 1 + random.Int64N(5)}
			if random.IntN(2) == 0 {
				c = check{key: fmt.Sprintf("c:once:%x", random.Uint64()), cost: 1} // nobody asks for it again
			}
			checks = append(checks, c)
		}
		answers, err := asker.ask(checks)
		d.record.mu.Lock()
		for i, c := range checks {
			switch {
			case err != nil || answers[i] == nobodyKnows:
				d.record.maybe[c.key] += c.cost
				d.errors.Add(1)
			case answers[i] == granted:
				d.record.allowed[c.key] += c.cost
				d.checks.Add(1)
			default:
				d.record.denied++
				d.checks.Add(1)
			}
		}
		d.record.mu.Unlock()
	}
}

// numbers says how many numbers a record has.
func numbers(m map[string]map[int64]bool) (n int) {
	for one := range maps.Values(m) {
		n += len(one)
	}
	return n
}

// Keys that begin with b: have a window of seconds, so they rise and fall all the
// time, also while the clock steps and relays lose their lock.
const (
	burstLimit = 10
	burstPer   = 3 * time.Second
	pulses     = 40 // keys of pulse
)

// pulse charges one key after another above its limit. Each key is released when its window ends.
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

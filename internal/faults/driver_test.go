package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamcounter/streamcounter/api"
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

// run drives until ctx ends, and lets what is under way come to its end.
func (d *driver) run(ctx context.Context, seed uint64) {
	var load sync.WaitGroup
	load.Go(func() { d.produce(ctx, "e", seed) })
	load.Go(func() { d.repeat(ctx, seed) })
	load.Go(func() { d.pulse(ctx, seed) })
	load.Go(func() { d.late(ctx, "load", seed) })
	load.Go(func() { d.appendValues(ctx, seed) })
	askers := d.s.askers()
	for i, a := range askers {
		load.Go(func() { d.check(ctx, a, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	for i, a := range valuesAskers(askers) {
		load.Go(func() { d.checkValues(ctx, a, rand.New(rand.NewPCG(seed, 800+uint64(i)))) })
	}
	for i := range uint64(holders) {
		load.Go(func() { d.hold(ctx, rand.New(rand.NewPCG(seed, 1000+i))) })
	}
	for i := range uint64(3) {
		load.Go(func() { d.askAgain(ctx, rand.New(rand.NewPCG(seed, 2000+i))) })
	}
	for i := range uint64(operatedKeys) {
		h, key := &hand{}, fmt.Sprintf("o:%d", i)
		load.Go(func() { d.operate(ctx, key, h, rand.New(rand.NewPCG(seed, 3000+i))) })
		load.Go(func() { d.checkOperated(ctx, key, h, rand.New(rand.NewPCG(seed, 4000+i))) })
		load.Go(func() { d.checkMoving(ctx, rand.New(rand.NewPCG(seed, 5000+i))) })
	}
	for i := range 8 {
		load.Go(func() { d.checkLeased(ctx, i) })
	}
	load.Go(func() { d.reload(ctx, rand.New(rand.NewPCG(seed, 6000))) })
	load.Wait()
	for _, a := range askers {
		a.close()
	}
}

// pace lets a loop go on every so often, false when ctx has ended.
func pace(ctx context.Context, every time.Duration) bool {
	t := time.NewTimer(every)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
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
	for n := 0; pace(ctx, 20*time.Millisecond); n++ {
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out := log.Append(ctx, batch)
	lost := map[string]bool{}
	d.record.mu.Lock()
	defer d.record.mu.Unlock()
	for _, e := range out.Unknown {
		note(d.record.unknown, e)
		lost[fmt.Sprint(e)] = true
	}
	for _, e := range out.Refused {
		lost[fmt.Sprint(e)] = true
	}
	for _, e := range batch {
		if !lost[fmt.Sprint(e)] {
			note(d.record.acked, e)
		}
	}
	d.events.Add(int64(out.Appended))
	d.errors.Add(int64(len(lost)))
}

// repeat appends each event, with an id, until Redis says that it has it.
func (d *driver) repeat(ctx context.Context, seed uint64) {
	log, random := d.log(), rand.New(rand.NewPCG(seed, 200))
	numbers := map[string]int64{}
	for n := 0; pace(ctx, 50*time.Millisecond); n++ {
		var left []api.Event
		for range 1 + random.IntN(10) {
			key := fmt.Sprintf("r:%d:%d", n/100, random.IntN(10))
			numbers[key]++
			left = append(left, api.Event{Key: key, Count: numbers[key], ID: fmt.Sprint("id ", numbers[key])})
		}
		all := left
		if random.IntN(5) == 0 { // as if an answer had been lost, which it seldom is just here
			within, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			log.Append(within, all)
			cancel()
		}
		for len(left) > 0 {
			within, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			out := log.Append(within, left)
			cancel()
			left = append(out.Refused, out.Unknown...)
			if len(left) > 0 && !pace(ctx, 50*time.Millisecond) {
				break
			}
		}
		undone := map[string]bool{}
		for _, e := range left {
			undone[fmt.Sprint(e)] = true
		}
		d.record.mu.Lock()
		for _, e := range all {
			if undone[fmt.Sprint(e)] { // the end came between
				note(d.record.unknown, e)
			} else {
				note(d.record.acked, e)
			}
		}
		d.record.mu.Unlock()
	}
}

// check asks the server, and records what it was granted.
func (d *driver) check(ctx context.Context, asker asker, random *rand.Rand) {
	for pace(ctx, 10*time.Millisecond) {
		var checks []check
		for range 1 + random.IntN(asker.most()) {
			c := check{key: fmt.Sprintf("c:%d", random.IntN(3)), cost: 1 + random.Int64N(5)}
			if random.IntN(2) == 0 {
				c = check{key: fmt.Sprintf("c:once:%x", random.Uint64()), cost: 1} // nobody asks for it again
			}
			checks = append(checks, c)
		}
		answers, err := asker.ask(ctx, checks)
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

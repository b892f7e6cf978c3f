package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Keys that begin with d: and v: have rules that count different values. d: are checked and appended to, and their
// values leave within seconds; v: are appended to alone, beyond their limit for the day.
const (
	valuesLimit  = 6 // of d:
	valuesPer    = 2 * time.Second
	valuesOfDay  = 40 // of d:, more than there are values
	manyValues   = 15
	touchedLimit = 10 // of v:
	valuesKeys   = 2  // of each at a time
	valuesTurn   = 300
)

// The windows of a day keep every entry and value for the verification.
var valuesRules = fmt.Sprintf(`  - name: values
    match: "d:*"
    windows:
      - {limit: %d, per: %s, distinct: user, normalize: [lower]}
      - {limit: %d, per: 24h, distinct: user, normalize: [lower]}
      - {limit: 1000000000, per: 25h}
    hold: 0s
    on_error: deny
  - name: touched
    match: "v:*"
    windows: [{limit: %d, per: 24h, distinct: user, normalize: [lower]}, {limit: 1000000000, per: 25h}]
    alerts: [50%%, 80%%]
    hold: 0s
`, valuesLimit, valuesPer, valuesOfDay, touchedLimit)

// touch is one check or event of such a key, known by its number as each event is (record): the number is its cost or
// count. When the value was seen last by an event lies between low and high, in ms; of a check the log says it.
type touch struct {
	value     string
	check     bool
	low, high int64
}

// denial is a check that was denied, and when it was asked, in ms, while Redis's clock had not been stepped.
type denial struct {
	key, value   string
	began, ended int64
}

// touches numbers a check or an event of a key.
func (d *driver) touches(key string, t touch) int64 {
	d.record.mu.Lock()
	defer d.record.mu.Unlock()
	if d.record.touched[key] == nil {
		d.record.touched[key] = map[int64]*touch{}
	}
	n := int64(len(d.record.touched[key]) + 1)
	d.record.touched[key][n] = &t
	return n
}

// values gives a value as it counts, and as it is spelled. Some are seen more often than others.
func values(random *rand.Rand) (counted, spelled string) {
	n := min(random.IntN(manyValues), random.IntN(manyValues))
	return fmt.Sprintf("user%d", n), fmt.Sprintf("%s%d", []string{"user", "User", "USER"}[random.IntN(3)], n)
}

// appendValues appends events once each, some of a key at once: they are counted together.
func (d *driver) appendValues(ctx context.Context, seed uint64) {
	client, random := d.s.producer(), rand.New(rand.NewPCG(seed, 700))
	for n := 0; pause.For(ctx, 30*time.Millisecond); n++ {
		key := fmt.Sprintf("%c:%d:%d", "dv"[random.IntN(2)], 2*n/valuesTurn, random.IntN(valuesKeys))
		var list []int64 // numbers
		var answers []*redis.StringCmd
		within, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, _ = client.Pipelined(within, func(p redis.Pipeliner) error {
			for range 1 + random.IntN(4) {
				value, spelled := values(random)
				number := d.touches(key, touch{value: value, low: time.Now().UnixMilli(), high: math.MaxInt64})
				list = append(list, number)
				answers = append(answers, p.XAdd(within, &redis.XAddArgs{
					Stream: d.s.keys.Events(d.s.keys.Partition(key)),
					Values: []any{"key", key, "count", number, "user", spelled}}))
			}
			return nil
		})
		cancel()
		for i, number := range list {
			id, err := answers[i].Result()
			d.appended(key, number, id, err)
		}
		if random.IntN(4) == 0 {
			d.appendValueLate(ctx, key, random)
		}
	}
}

// appendValueLate appends an event that is counted when it is claimed: its value may have been seen since.
func (d *driver) appendValueLate(ctx context.Context, key string, random *rand.Rand) {
	value, spelled := values(random)
	number := d.touches(key, touch{value: value, low: time.Now().UnixMilli(), high: math.MaxInt64})
	events := d.s.keys.Events(d.s.keys.Partition(key))
	id, err := readByTheDead.Eval(context.WithoutCancel(ctx), d.s.admin, []string{events}, key, number, eventlog.Group,
		"user", spelled).Text()
	d.appended(key, number, id, err)
}

// appended notes what Redis answered: with its ID it says when an event was.
func (d *driver) appended(key string, number int64, id string, err error) {
	d.record.mu.Lock()
	t := d.record.touched[key][number]
	if err == nil {
		if _, err = fmt.Sscanf(id, "%d-", &t.low); err == nil {
			t.high = t.low
		}
	}
	d.record.mu.Unlock()
	d.noteOne(key, number, err)
}

var errUnknown = errors.New("no answer of Redis")

// checkValues asks the server. It records denials too, because the log has granted checks only.
func (d *driver) checkValues(ctx context.Context, asker asker, random *rand.Rand) {
	ledger := d.record.ledger
	_, cluster := d.s.admin.(*redis.ClusterClient)
	for n := 0; pause.For(ctx, 15*time.Millisecond); n++ {
		var checks []check
		var counted []string
		began, epoch := time.Now().UnixMilli(), ledger.now()
		for _, i := range random.Perm(valuesKeys)[:1+random.IntN(min(valuesKeys, asker.most))] {
			key := fmt.Sprintf("d:%d:%d", n/valuesTurn, i)
			value, spelled := values(random)
			checks = append(checks, check{key, d.touches(key, touch{value: value, check: true}), spelled})
			counted = append(counted, value)
		}
		answers, err := asker.ask(checks)
		ended, stepped := time.Now().UnixMilli(), epoch > 0 || ledger.now() > 0
		for i, c := range checks {
			switch {
			case err != nil || answers[i] == nobodyKnows:
				d.noteOne(c.key, c.cost, cmp.Or(err, errUnknown))
			case answers[i] == granted:
				d.noteOne(c.key, c.cost, nil)
				d.valued.Add(1)
			case cluster && len(checks) > 1: // a denied call can have charged keys of some shards
				d.noteOne(c.key, c.cost, errUnknown)
			case !stepped && len(checks) == 1: // of several, another may have been denied
				d.record.mu.Lock()
				d.record.denials = append(d.record.denials, denial{c.key, counted[i], began, ended})
				d.record.mu.Unlock()
			}
		}
	}
}

// windowOf returns the state of the key's first window of values that lasts a day, as the server gives it.
func (s *system) windowOf(client *http.Client, key string) (api.WindowState, error) {
	var got api.KeyState
	_, err := answerTo(context.Background(), client, "GET", s.base+"/v1/keys/"+key, "", "", &got)
	for _, w := range got.Windows {
		if w.OfValues() && w.WindowMs == dayMs {
			return w, err
		}
	}
	return api.WindowState{}, fmt.Errorf("%+v has no window of values: %w", got, err)
}

const dayMs = 24 * 60 * 60 * 1000

func countsValues(key string) bool { return formOf(key) == "d" || formOf(key) == "v" }

// clockMayBeOff is how much earlier than its ID an event may have counted where Redis's clock was stepped: one of the
// future counts as of now.
const clockMayBeOff = 61_000 // ms

// seen is when a value was seen last, in ms: at low at least, and at high at most.
type seen struct{ low, high int64 }

// recount goes through a key's log in the order in which Redis counted: a plain map of value to when it was last seen.
// It calls before for each entry.
func (v *verdict) recount(key string, before func(e entry, t *touch, values map[string]seen)) map[string]seen {
	off, values := int64(0), map[string]seen{}
	if v.rec.ledger.now() > 1 { // the last epoch begins when the load has ended
		off = clockMayBeOff
	}
	for _, e := range v.logs[key] {
		t := v.rec.touched[key][e.count]
		if t == nil {
			continue // verifyEvents tells of it
		}
		before(e, t, values)
		at := seen{e.ms, e.ms}
		if !t.check {
			at = seen{t.low - off, min(t.high, e.ms)}
		}
		was := values[t.value]
		values[t.value] = seen{max(was.low, at.low), max(was.high, at.high)}
	}
	return values
}

// held is how many values are in a window that ends at ms, for certain and at most.
func held(values map[string]seen, ms, per int64) (certain, most int) {
	for s := range maps.Values(values) {
		if s.low > ms-per {
			certain++
		}
		if s.high > ms-per {
			most++
		}
	}
	return certain, most
}

// verifyValues: a check with a new value was granted only with room for it, one with a value that the window had was
// never denied, and at the end each window is what the recount says. It gives how many have more than their limit.
func (v *verdict) verifyValues(s *system) (over int) {
	v.t.Helper()
	per := valuesPer.Milliseconds()
	ends := map[string]map[string]seen{}
	for key := range v.logs {
		if !countsValues(key) {
			continue
		}
		ends[key] = v.recount(key, func(e entry, t *touch, values map[string]seen) {
			certain, _ := held(values, e.ms, per)
			if known := values[t.value].high > e.ms-per; t.check && !known && certain >= valuesLimit {
				v.fail(key, "%s: check %d was granted to a new value beside %d others, the limit is %d", key, e.count,
					certain, valuesLimit)
			}
		})
	}
	v.verifyDenials()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for key, values := range ends {
		if len(values) > 0 && v.verifyWindow(s, client, key, values) {
			over++
		}
	}
	return over
}

// verifyDenials compares each denial with the values that were seen in the window's time before it.
func (v *verdict) verifyDenials() {
	v.t.Helper()
	per := valuesPer.Milliseconds()
	for _, d := range v.rec.denials {
		others := map[string]bool{}
		for _, e := range v.logs[d.key] {
			t := v.rec.touched[d.key][e.count]
			if t == nil {
				continue
			}
			low, high := t.low, min(t.high, e.ms)
			if t.check {
				low, high = e.ms, e.ms
				if t.value == d.value && e.ms < d.began && e.ms > d.ended-per {
					v.fail(d.key, "%s: a check of %s was denied at %d, and the value was seen at %d", d.key, d.value,
						d.ended, e.ms)
				}
			}
			if high > d.began-per && low <= d.ended {
				others[t.value] = true
			}
		}
		if len(others) < valuesLimit {
			v.fail(d.key, "%s: a check was denied between %d and %d beside %d values, the limit is %d", d.key, d.began,
				d.ended, len(others), valuesLimit)
		}
	}
}

// verifyWindow compares the server's answer with the recount. It tells whether the window has more than its limit.
func (v *verdict) verifyWindow(s *system, client *http.Client, key string, values map[string]seen) bool {
	v.t.Helper()
	now := func() int64 {
		at, err := s.admin.Time(context.Background()).Result()
		testkit.Must(v.t, err)
		return at.UnixMilli()
	}
	limit := int64(valuesOfDay)
	if formOf(key) == "v" {
		limit = touchedLimit
	}
	before := now()
	got, err := s.windowOf(client, key)
	testkit.Must(v.t, err)
	after := now()
	var lows, highs []int64
	for at := range maps.Values(values) {
		lows, highs = append(lows, at.low), append(highs, at.high)
	}
	slices.Sort(lows)
	slices.Sort(highs)
	used, n := min(int64(len(values)), limit+1), len(values)
	// Times count from now, or from the newest value where that is later: the clock was stepped back.
	from, to := max(before, lows[n-1]), max(after, highs[n-1])
	next, empty := lows[n-int(used)]+dayMs-to, lows[n-1]+dayMs-to
	nextMost, emptyMost := highs[n-int(used)]+dayMs-from, highs[n-1]+dayMs-from
	if got.Used != used || got.NextFreeMs < next || got.NextFreeMs > nextMost || got.EmptyMs < empty ||
		got.EmptyMs > emptyMost {
		v.fail(key, "%s has %+v; a recount of %d values says %d used, next free in %d to %d, empty in %d to %d", key,
			got, n, used, next, nextMost, empty, emptyMost)
	}
	return used > limit
}

// levels gives what the window with levels of a key held at each entry of its log, and its limit.
func (v *verdict) levels(key string) (amounts []int64, limit int64) {
	values, limit := map[string]bool{}, int64(eventLimit)
	for _, e := range v.logs[key] {
		if t := v.rec.touched[key][e.count]; t != nil {
			values[t.value], limit = true, touchedLimit
			e.total = int64(len(values))
		}
		amounts = append(amounts, e.total)
	}
	return amounts, limit
}

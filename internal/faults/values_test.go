package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/pause"
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

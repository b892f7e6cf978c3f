package check

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// others are processes that lease, reserve, settle and sweep units of the key k while one remembers its denials.
type others struct {
	*processes
	*rapid.T
	one    *process
	plan   *windows.Plan
	leased map[string]int64 // lease → its units
	open   []held
	ids    int
}

type held struct {
	id    string
	units int64
}

// drawnRules are one rule of up to three windows, of several algorithms maybe, and maybe a shadow rule.
func drawnRules(rt *rapid.T) []*windows.Rule {
	algorithms, pers := rapid.SampledFrom(windows.Algorithms), rapid.SampledFrom([]int64{300, 450, 700, 1000, 1300})
	window := func(limit int64, what string) windows.Window {
		return windows.Window{Limit: limit, Per: time.Duration(pers.Draw(rt, what)) * time.Millisecond}
	}
	r := rule("*", window(rapid.Int64Range(20, 28).Draw(rt, "limit"), "window"))
	r.Algorithm = algorithms.Draw(rt, "algorithm")
	r.OnExpire = rapid.SampledFrom([]windows.OnExpire{windows.OnExpireCharge, windows.OnExpireFree}).Draw(rt, "expired")
	if w := window(rapid.Int64Range(20, 28).Draw(rt, "second limit"), "second"); w.Per != r.Windows[0].Per {
		if rapid.Bool().Draw(rt, "of another algorithm") {
			w.Algorithm = algorithms.Draw(rt, "its algorithm")
		}
		r.Windows = append(r.Windows, w)
	}
	if rapid.IntRange(0, 4).Draw(rt, "calendar") == 0 {
		w, err := windows.CalendarWindow(30, "day", "", "")
		testkit.Must(rt, err)
		r.Windows = append(r.Windows, w)
	}
	if rapid.IntRange(0, 3).Draw(rt, "shadow") > 0 {
		return []*windows.Rule{r}
	}
	shadow := rule("*", window(8, "of the shadow rule"))
	shadow.Shadow, shadow.Name, shadow.Algorithm = true, "watch", algorithms.Draw(rt, "its algorithm")
	return []*windows.Rule{shadow, r}
}

func (o *others) lasts(what string, of ...int64) time.Duration {
	return time.Duration(rapid.SampledFrom(of).Draw(o.T, what)) * time.Millisecond
}

// renew renews a lease, which may have ended long ago.
func (o *others) renew() {
	id := rapid.SampledFrom([]string{"a", "b"}).Draw(o.T, "lease")
	had := o.leased[id]
	store := reservations.New(o.other)
	ask := api.LeaseRequest{Key: "k", ID: store.ID(id, []counters.Request{{Key: "k"}}), Had: had,
		Used: rapid.Int64Range(0, had).Draw(o.T, "used"),
		Want: rapid.SampledFrom([]int64{0, 1, 3, 16, 20}).Draw(o.T, "want")}
	ask.Keep = rapid.Int64Range(0, min(had-ask.Used, ask.Want)).Draw(o.T, "keep")
	got, err := store.RenewLease(context.Background(), o.plan, o.lasts("lease lasts", 125, 400, 700), ask)
	testkit.Must(o.T, err)
	o.leased[id] = got.Units
}

func (o *others) reserve(cost int64) {
	o.ids++
	requests := []counters.Request{{Plan: o.plan, Key: "k", Cost: cost}}
	store := reservations.New(o.other)
	id := store.ID(fmt.Sprint("r", o.ids), requests)
	got, err := store.Reserve(context.Background(), id, o.lasts("reserved for", 100, 400, 2000), "-", requests)
	testkit.Must(o.T, err)
	if got.Allowed {
		o.open = append(o.open, held{id, cost})
	}
}

func (o *others) settle() {
	if len(o.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(o.open)-1).Draw(o.T, "which")
	one := o.open[i]
	ops := []reservations.SettleOp{reservations.Commit, reservations.Cancel, reservations.Renew}
	op := rapid.SampledFrom(ops).Draw(o.T, "how")
	charge := rapid.Int64Range(0, one.units).Draw(o.T, "charge")
	_, err := reservations.New(o.other).Settle(context.Background(), o.rules, one.id, []int{o.other.Partition("k")}, op,
		o.lasts("renewed for", 20, 300, 1500), func(string, int64) int64 { return charge })
	testkit.Must(o.T, err)
	if op != reservations.Renew {
		o.open = slices.Delete(o.open, i, i+1)
	}
}

// check makes the one process check, and returns whether it denied from memory. Then Redis denies too.
func (o *others) check(cost int64) bool {
	a, err := o.one.Check(context.Background(), api.CheckRequest{Key: "k", Cost: cost})
	testkit.Must(o.T, err)
	if a.Source != api.SourceCache {
		return false
	}
	look, err := o.other.Check(context.Background(), []counters.Request{{Plan: o.plan, Key: "k", Cost: cost,
		Mode: api.ModeLook}})
	testkit.Must(o.T, err)
	if look.Allowed {
		o.Fatalf("denied from memory, and Redis has room: %+v, %+v", a, look.Items)
	}
	return true
}

// No denial from memory is false for longer than marks may take, under any order of leases and reservations.
func TestReservationsLeaveDenialsTrue(t *testing.T) {
	c := streamtest.AnyRedis(t)
	timelines, fromMemory, prefix := 0, 0, streamtest.Prefix(t)
	rapid.Check(t, func(rt *rapid.T) {
		timelines++
		// A day ends 1.5 s after the second one.
		start := rapid.SampledFrom([]int64{beginning, 1_700_006_398_500}).Draw(rt, "start")
		rules, err := windows.NewRules(drawnRules(rt))
		if err != nil {
			rt.Skip(err.Error())
		}
		o := &others{processes: newProcesses(rt, c, fmt.Sprint(prefix, "-", timelines), 4, rules), T: rt,
			leased: map[string]int64{}}
		o.clock, o.one = start, o.start()
		o.plan = rules.Match("k")
		for range rapid.IntRange(40, 150).Draw(rt, "steps") {
			o.clock += rapid.Int64Range(0, 60).Draw(rt, "passes")
			cost := rapid.SampledFrom([]int64{1, 4, 9, 14, 18, 20}).Draw(rt, "cost")
			switch rapid.IntRange(0, 11).Draw(rt, "what") {
			case 0, 1, 2:
				o.renew()
			case 3:
				o.reserve(cost)
			case 4:
				o.settle()
			case 5:
				o.sweep()
			default:
				if o.check(cost) {
					fromMemory++
				}
				continue
			}
			o.clock += freshFor.Milliseconds()
		}
	})
	if !testing.Short() && fromMemory < timelines { // a few draws may have none
		t.Errorf("%d checks of %d timelines were answered from memory: this proves too little", fromMemory, timelines)
	}
}

// Units that a lease charges before it would have expired may leave earlier than a denial said.
func TestALeaseThatIsChargedSoon(t *testing.T) {
	c := streamtest.AnyRedis(t)
	for _, algorithm := range windows.Algorithms {
		r := rule("*", windows.Window{Limit: 20, Per: 400 * time.Millisecond})
		r.Algorithm = algorithm
		t.Run(algorithm, func(t *testing.T) { chargedSoon(t, c, r, 10) })
	}
}

// chargedSoon makes a check that is denied while most units are leased, and soon charged. It compares with Redis
// until the check is not denied any more.
func chargedSoon(t *testing.T, c *redis.Client, r *windows.Rule, cost int64) {
	p := newProcesses(t, c, streamtest.Prefix(t), 4, rulesOf(t, r))
	p.clock = beginning - 100 // of a fixed window
	one := p.start()
	check := func(cost int64) bool {
		a, err := one.Check(t.Context(), api.CheckRequest{Key: "k", Cost: cost})
		testkit.Must(t, err)
		return a.Allowed
	}
	for range 3 { // until the mark is known
		check(20)
		p.clock++
	}
	p.clock += 3000
	check(1)
	look := counters.Request{Plan: p.rules.Match("k"), Key: "k", Cost: cost, Mode: api.ModeLook}
	renew := func(had, used, want int64) {
		store := reservations.New(p.other)
		got, err := store.RenewLease(t.Context(), look.Plan, 300*time.Millisecond, api.LeaseRequest{Key: "k",
			ID: store.ID("a", []counters.Request{look}), Had: had, Used: used, Want: want})
		if err != nil || !got.Stood || got.Units != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	renew(0, 0, 14)
	if check(cost) {
		t.Fatal("most is leased")
	}
	renew(14, 13, 1)
	p.clock += freshFor.Milliseconds()
	for end := p.clock + 4000; p.clock < end; p.clock += 5 {
		allowed, err := p.other.Check(t.Context(), []counters.Request{look})
		testkit.Must(t, err)
		if got := check(cost); got != allowed.Allowed {
			t.Fatalf("allowed: %v, and by Redis: %v", got, allowed.Allowed)
		}
		if allowed.Allowed {
			return
		}
	}
	t.Error("denied after all has left")
}

package counters_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// spenders use a key by leases, reservations and checks. done is their record.
type spenders struct {
	*rapid.T
	s      *store
	plan   *windows.Plan
	key    string
	leases map[string]*leased
	open   []held
	ids    int
	done   []use
	late   int // renewals of leases that had ended
}

// leased is a lease, as its process sees it.
type leased struct{ had, left, until int64 }

type use struct{ at, units int64 }

// note records units that were used now. No window may have more than its limit then.
func (p *spenders) note(units int64) {
	p.done = append(p.done, use{p.s.clock.ms, units})
	for _, w := range p.plan.Live.Windows {
		sum := int64(0)
		for _, u := range p.done {
			if u.at > p.s.clock.ms-w.Per.Milliseconds() {
				sum += u.units
			}
		}
		if sum > w.Limit {
			p.Fatalf("%d units were used in %v, of %d", sum, w.Per, w.Limit)
		}
	}
}

// renew renews a lease, or takes it, however late it is.
func (p *spenders) renew(id string) {
	one, keep := p.leases[id], int64(0)
	want := rapid.Int64Range(0, 30).Draw(p.T, "want")
	if p.s.clock.ms < one.until {
		keep = min(one.left, want)
	} else if one.had > 0 {
		p.late++
	}
	got := p.s.leases(p.key, ms(125), api.LeaseRequest{ID: id, Had: one.had, Used: one.had - one.left, Keep: keep,
		Want: want, Least: rapid.Int64Range(1, 3).Draw(p.T, "least")})
	*one = leased{got, got, p.s.clock.ms + 100}
}

// spend uses units of a lease that has not ended.
func (p *spenders) spend(id string) {
	one := p.leases[id]
	if n := min(one.left, rapid.SampledFrom([]int64{1, 7, 40}).Draw(p.T, "spent")); n > 0 && p.s.clock.ms < one.until {
		one.left -= n
		p.note(n)
	}
}

func (p *spenders) check() {
	cost := rapid.SampledFrom([]int64{1, 8, 20}).Draw(p.T, "cost")
	if p.s.check(p.key, cost).Allowed {
		p.note(cost)
	}
}

func (p *spenders) reserve() {
	p.ids++
	units := rapid.Int64Range(1, 10).Draw(p.T, "reserved")
	ttl := rapid.SampledFrom([]int64{50, 100, 2000}).Draw(p.T, "for")
	if id, got := p.s.reserve(fmt.Sprint("r", p.ids), units, ms(ttl), p.key); got.Allowed {
		p.open = append(p.open, held{id: id, units: []int64{units}})
	}
}

// commit commits a reservation, if it still exists.
func (p *spenders) commit() {
	if len(p.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.open)-1).Draw(p.T, "which")
	one := p.open[i]
	p.open = slices.Delete(p.open, i, i+1)
	units := rapid.Int64Range(0, one.units[0]).Draw(p.T, "committed")
	if p.s.settle(reservations.Commit, one.id, units, time.Minute) == reservations.Settled {
		p.note(units)
	}
}

// spentRule is a rule of an algorithm that never admits more than the limit, of one window or two.
func spentRule(rt *rapid.T) *windows.Rule {
	limit := func(least int64, what string) int64 { return rapid.Int64Range(least, 2*least).Draw(rt, what) }
	rule := &windows.Rule{Name: "a", Match: "*"}
	rule.Windows = []windows.Window{{Limit: limit(20, "limit"), Per: time.Second}}
	rule.Algorithm = rapid.SampledFrom([]string{"sliding-log", "sliding-log-zset", "sliding-buckets"}).Draw(rt,
		"algorithm")
	if rapid.Bool().Draw(rt, "frees") {
		rule.OnExpire = windows.OnExpireFree
	}
	if rapid.Bool().Draw(rt, "two windows") {
		rule.Windows = append(rule.Windows, windows.Window{Limit: limit(30, "second limit"), Per: 3 * time.Second})
	}
	return rule
}

// However late leases are renewed, and whatever else is reserved of their key, no window has more than its limit by the
// record of the spenders.
func TestLeasesKeepTheLimit(t *testing.T) { eachRedis(t, nil, leasesKeepTheLimit) }

func leasesKeepTheLimit(t *testing.T, s *store) {
	timelines, late := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		timelines++
		s.rules = rulesOf(rt, spentRule(rt))
		s.clock.ms += 10_000
		p := &spenders{T: rt, s: s, plan: planOf(s.rules), key: fmt.Sprint("k", timelines),
			leases: map[string]*leased{"a": {}, "b": {}}}
		p.run(rapid.IntRange(30, 120).Draw(rt, "steps"))
		late += p.late
	})
	if !testing.Short() && late < timelines { // a few draws may have none
		t.Errorf("%d leases of %d timelines were renewed late: this proves too little", late, timelines)
	}
}

func (p *spenders) run(steps int) {
	lease := rapid.SampledFrom([]string{"a", "b"})
	for range steps {
		p.s.clock.ms += rapid.SampledFrom([]int64{0, 5, 20, 70, 70, 150, 300, 1100, 4000}).Draw(p.T, "passes")
		switch rapid.IntRange(0, 10).Draw(p.T, "what") {
		case 0, 1, 2:
			p.renew(lease.Draw(p.T, "lease"))
		case 3, 4:
			p.spend(lease.Draw(p.T, "of"))
		case 5, 6:
			p.check()
		case 7, 8:
			p.reserve()
		case 9:
			p.commit()
		case 10:
			p.s.sweep(p.T)
		}
	}
}

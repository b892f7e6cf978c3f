package windows_test

import (
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// twoProcesses are an older one, which has not read changed rules yet, and a newer one.
type twoProcesses struct {
	t                  *testing.T
	s                  *store
	older, newer       *windows.Redis
	worker             *windows.Redis // as old as older
	oldRules, newRules *windows.Rules
}

// eachChange runs a story for each pair of exact algorithms: the older process has recorded its
// rules, and after before (nil: nothing happens) the newer one its own.
func eachChange(t *testing.T, before func(p *twoProcesses), story func(p *twoProcesses)) {
	for _, from := range windows.Algorithms {
		for _, to := range windows.Algorithms {
			if !exact(from) || !exact(to) || from == to {
				continue
			}
			t.Run(from+" to "+to, func(t *testing.T) {
				eachRedis(t, nil, func(t *testing.T, s *store) {
					p := &twoProcesses{t: t, s: s, older: s.serve, newer: s.store,
						oldRules: rulesOf(t, spent(from)), newRules: rulesOf(t, spent(to))}
					p.worker = windows.NewRedis(s.reader, s.keys)
					p.worker.Now = s.clock.now
					testkit.Must(t, p.older.RecordRules(t.Context(), p.oldRules))
					testkit.Must(t, p.worker.RecordRules(t.Context(), p.oldRules))
					if before != nil {
						before(p)
					}
					testkit.Must(t, p.newer.RecordRules(t.Context(), p.newRules))
					story(p)
				})
			})
		}
	}
}

func spent(algorithm string) *windows.Rule {
	return &windows.Rule{Name: "r", Match: "*", Algorithm: algorithm, Hold: time.Second,
		Windows: []windows.Window{{Limit: 10, Per: time.Hour}}}
}

func (p *twoProcesses) check(by *windows.Redis, key string, cost int64) windows.KeyState {
	p.t.Helper()
	rules := p.oldRules
	if by == p.newer {
		rules = p.newRules
	}
	v, err := by.Check(p.t.Context(), []windows.Request{{Plan: rules.Match(key), Key: key, Cost: cost}})
	testkit.Must(p.t, err)
	return v.Items[0]
}

func (p *twoProcesses) admitted(by *windows.Redis, key string, cost, used int64) {
	p.t.Helper()
	st := p.check(by, key, cost)
	if st.RetryAfter != 0 || st.Windows[0].Used != used {
		p.t.Fatalf("%s, cost %d: used %d, retry after %v; expected %d admitted", key, cost, st.Windows[0].Used,
			st.RetryAfter, used)
	}
}

func (p *twoProcesses) denied(by *windows.Redis, key string, cost, used int64) {
	p.t.Helper()
	st := p.check(by, key, cost)
	if st.RetryAfter == 0 || st.Windows[0].Used != used {
		p.t.Fatalf("%s, cost %d: used %d, retry after %v; expected a denial at %d", key, cost, st.Windows[0].Used,
			st.RetryAfter, used)
	}
}

func (p *twoProcesses) used(by *windows.Redis, key string, want int64) {
	p.t.Helper()
	rules := p.oldRules
	if by == p.newer {
		rules = p.newRules
	}
	st, err := by.Peek(p.t.Context(), rules.Match(key), key)
	testkit.Must(p.t, err)
	if st.Windows[0].Used != want {
		p.t.Fatalf("%s: used %d, expected %d", key, st.Windows[0].Used, want)
	}
}

// fold counts an event by the older worker.
func (p *twoProcesses) fold(key string, count int64) {
	p.t.Helper()
	for part, events := range p.s.append(p.t, windows.Event{Key: key, Count: count, Ms: p.s.clock.ms}) {
		_, _, err := p.worker.Fold(p.t.Context(), part, p.oldRules, events)
		testkit.Must(p.t, err)
	}
}

// A process that has not read changed rules yet counts a key where one that has counts it, whatever
// it is asked: so both together never admit more than the limit.
func TestAProcessWithOlderRulesFollows(t *testing.T) {
	eachChange(t, func(p *twoProcesses) {
		p.admitted(p.older, "k", 4, 4)
		p.admitted(p.older, "events", 4, 4)
	}, func(p *twoProcesses) {
		p.admitted(p.newer, "k", 3, 7)
		p.admitted(p.older, "k", 2, 9)
		p.used(p.newer, "k", 9)
		p.used(p.older, "k", 9)
		p.denied(p.older, "k", 2, 9)
		p.denied(p.newer, "k", 2, 9)

		// A key that nobody had counted before.
		p.admitted(p.newer, "fresh", 6, 6)
		p.denied(p.older, "fresh", 6, 6)
		p.admitted(p.older, "fresh", 4, 10)
		p.denied(p.newer, "fresh", 1, 10)

		// One that only looks first, and events.
		p.used(p.newer, "events", 4)
		p.fold("events", 5)
		p.used(p.newer, "events", 9)
		p.used(p.older, "events", 9)

		// Units given back, and a reset.
		_, st, err := p.older.Refund(p.t.Context(), p.oldRules.Match("k"), "k", 4)
		testkit.Must(p.t, err)
		if st.Windows[0].Used != 5 {
			p.t.Fatalf("after a refund used %d, expected 5", st.Windows[0].Used)
		}
		p.used(p.newer, "k", 5)
		had, err := p.older.Reset(p.t.Context(), p.oldRules.Match("k"), "k")
		testkit.Must(p.t, err)
		if !had {
			p.t.Fatal("the reset found no counter")
		}
		p.admitted(p.older, "k", 6, 6)
		p.denied(p.newer, "k", 6, 6)
		if had, err := p.newer.Reset(p.t.Context(), p.newRules.Match("none"), "none"); had || err != nil {
			p.t.Fatalf("a reset of a key without counters: %t, %v", had, err)
		}
	})
}

// A level of a key that was carried is not ended by a process with the older rules.
func TestASweepWithOlderRulesFollows(t *testing.T) {
	eachChange(t, func(p *twoProcesses) { p.admitted(p.older, "k", 10, 10) }, func(p *twoProcesses) {
		p.used(p.newer, "k", 10)
		part := p.s.keys.Partition("k")
		_, _, err := p.worker.Sweep(p.t.Context(), part, p.oldRules, []string{"k"})
		testkit.Must(p.t, err)
		if fields, err := p.worker.Levelled(p.t.Context(), part); err != nil || len(fields) != 1 {
			p.t.Fatalf("levels of %q, %v; expected k to be throttled", fields, err)
		}
	})
}

// The rules of a reload are in force before they are recorded, and Redis may be away then.
func TestRulesThatAreNotRecordedYet(t *testing.T) {
	eachChange(t, func(p *twoProcesses) {
		p.newer = p.older
		p.admitted(p.older, "k", 7, 7)
		both := [][]windows.Request{{{Plan: p.oldRules.Match("k"), Key: "k", Cost: 1}},
			{{Plan: p.newRules.Match("k"), Key: "k", Cost: 1}}, {{Plan: p.newRules.Match("k"), Key: "k", Cost: 2}}}
		got, err := p.older.CheckMany(p.t.Context(), both)
		testkit.Must(p.t, err)
		if !got[0].Allowed || !got[1].Allowed || got[2].Allowed {
			p.t.Fatalf("allowed %t, %t, %t; expected 1 and 1 units, and no more", got[0].Allowed, got[1].Allowed,
				got[2].Allowed)
		}
	}, func(p *twoProcesses) { p.used(p.newer, "k", 9) })
}

// Processes read two changes one after another: each knows another of three algorithms.
func TestThreeProcessesWithDifferentRules(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		var rules []*windows.Rules
		var processes []*windows.Redis
		for _, a := range []string{windows.DefaultAlgorithm, packed, "sliding-log-zset"} {
			rules = append(rules, rulesOf(t, spent(a)))
			p := windows.NewRedis(s.reader, s.keys)
			p.Now = s.clock.now
			testkit.Must(t, p.RecordRules(t.Context(), rules[0]))
			processes = append(processes, p)
		}
		used := int64(0)
		turn := func(i, of int) {
			t.Helper()
			request := windows.Request{Plan: rules[of].Match("k"), Key: "k", Cost: 1}
			v, err := processes[i].Check(t.Context(), []windows.Request{request})
			testkit.Must(t, err)
			if used++; v.Allowed != (used <= 10) || v.Items[0].Windows[0].Used != min(used, 10) {
				t.Fatalf("check %d, by process %d: allowed %t, used %d", used, i, v.Allowed, v.Items[0].Windows[0].Used)
			}
		}
		turn(0, 0)
		testkit.Must(t, processes[1].RecordRules(t.Context(), rules[1]))
		turn(1, 1)
		turn(0, 0)
		testkit.Must(t, processes[2].RecordRules(t.Context(), rules[2]))
		for range 3 {
			turn(2, 2)
			turn(1, 1)
			turn(0, 0)
		}
	})
}

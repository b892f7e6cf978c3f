package windows

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Event is one stored event of a key that a rule matches.
type Event struct {
	ID    string
	Ms    int64 // the millisecond of ID
	Key   string
	Count int64
	// ProducerID is the id that its producer gave it, empty where it gave none: of
	// events of a key with the same id only the first counts.
	ProducerID string
}

// Folded counts the events of a batch by what became of them.
type Folded struct {
	Folded         int64 // counted
	Late           int64 // acknowledged, but out of every window already
	AlreadyCounted int64 // counted before, by somebody
	Duplicate      int64 // sent before by their producer, with the same id
	Merged         int64 // of all of these: events that shared another's entry
	// Transitions is how many levels changed.
	Transitions int64
	// Corrupt counters held foreign data. They start again from zero.
	Corrupt int64
	// Keys is what each key had of the events, those of one rule one after the other; it counts those
	// too that were counted before.
	Keys []FoldedKey
}

// FoldedKey is what a batch had of one key.
type FoldedKey struct {
	Rule          string // that decides; of a key with shadow rules alone, the first of them
	Key           string
	Events, Units int64
}

// Batch is the events of one partition that are folded together.
type Batch struct {
	Partition int
	Events    []Event
	// TraceParent is the W3C trace context of the fold, empty where it is not traced. It is the same for all
	// batches of a call, and goes with the transitions.
	TraceParent string
}

// Fold counts a batch of partition p, as FoldBatches does, and gives the IDs of events
// that no rule matches.
func (s *Redis) Fold(ctx context.Context, p int, rules *Rules, events []Event) (Folded, []string, error) {
	folded, unmatched, err := s.FoldBatches(ctx, rules, []Batch{{Partition: p, Events: events}})
	return folded, unmatched[0], err
}

// FoldBatches counts the batches of several partitions in one step, each event at most
// once whoever sends it how often, and acknowledges it. They have a partition each, and on
// a Cluster there is one batch. Where it fails, f has what was counted all the same; the
// batches are to be folded again, which counts nothing twice.
// unmatched has, for each batch, the IDs of events that no rule matches: those are the
// caller's to acknowledge.
func (s *Redis) FoldBatches(ctx context.Context, rules *Rules, batches []Batch) (f Folded, unmatched [][]string,
	err error) {
	s.noticeAll(rules)
	keys := func() (keys []string) {
		for _, b := range batches {
			for _, e := range b.Events {
				keys = append(keys, e.Key)
			}
		}
		return keys
	}
	err = s.following(ctx, keys, func() error {
		before := f.Folded // in a try that failed then
		f, unmatched, err = s.foldBatches(ctx, rules, batches)
		f.Folded, f.AlreadyCounted = f.Folded+before, max(0, f.AlreadyCounted-before)
		return err
	})
	return f, unmatched, err
}

func (s *Redis) foldBatches(ctx context.Context, rules *Rules, batches []Batch) (f Folded, unmatched [][]string,
	err error) {
	if err := s.carryEvents(ctx, rules, batches); err != nil {
		return Folded{}, make([][]string, len(batches)), err
	}
	args := lua.FoldArgs{
		Now: s.now(), Group: eventlog.Group, RememberMs: cmp.Or(s.Remember, stream.DefaultRetention).Milliseconds(),
		Partitions: make([]lua.FoldPartition, 0, len(batches)),
	}
	scripts := map[*planCounter]*lua.Rule{} // a rule is the same for all partitions of a call
	unmatched = make([][]string, len(batches))
	merged := 0
	var folded []FoldedKey
	for i, b := range batches {
		args.TraceParent = b.TraceParent
		var grouped []lua.FoldRule
		grouped, unmatched[i] = s.group(b.Partition, rules, b.Events, scripts, &folded)
		if len(grouped) == 0 {
			continue
		}
		merged += len(b.Events) - len(unmatched[i])
		for _, r := range grouped {
			merged -= len(r.Groups)
		}
		p := b.Partition
		args.Partitions = append(args.Partitions, lua.FoldPartition{
			Events: s.keys.Events(p), Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p),
			IDs: s.keys.IDs(p), Rules: grouped,
		})
	}
	if len(args.Partitions) == 0 {
		return Folded{}, unmatched, nil
	}
	reply, err := lua.Fold(ctx, s.redis, args)
	s.answeredQuick.Add(reply.Quick)
	for _, counter := range reply.Left {
		s.near.set(counter, true)
	}
	f = Folded{
		Folded: reply.Folded, Late: reply.Late, AlreadyCounted: reply.AlreadyCounted, Duplicate: reply.Duplicate,
		Transitions: reply.Transitions, Corrupt: reply.Corrupt,
	}
	if err == nil {
		f.Merged, f.Keys = int64(merged), folded
	}
	return f, unmatched, err
}

// keyGroups is a key's groups while a batch is put together.
type keyGroups struct {
	key        string
	counter    string // its first
	resolution int64  // ms
	groups     []lua.FoldGroup
	firsts     []int64 // group → ms of its first event
	begins     []int64 // ms at which periods of the calendar begin: no group has events of both sides

	events, units int64
}

// group puts a batch into the shape that fold.lua takes. Events of one key
// share a group, and so an entry in its log, when their counts are the same and
// their times lie within the plan's resolution. The same count is what keeps
// the gate exact: XACK tells how many of a group were pending, not which.
func (s *Redis) group(p int, rules *Rules, events []Event, scripts map[*planCounter]*lua.Rule,
	folded *[]FoldedKey) (folds []lua.FoldRule, unmatched []string) {
	script := func(c *planCounter) *lua.Rule {
		if scripts[c] == nil {
			scripts[c] = s.script(c)
		}
		return scripts[c]
	}
	type planKeys struct {
		plan   *Plan
		keys   []*keyGroups
		begins []int64
	}
	var order []*planKeys
	byPlan := map[*Plan]*planKeys{}
	byKey := make(map[string]*keyGroups, len(events))
	for _, e := range events {
		k := byKey[e.Key]
		if k == nil {
			plan := s.match(rules, e.Key)
			if plan == nil {
				unmatched = append(unmatched, e.ID)
				continue
			}
			pk := byPlan[plan]
			if pk == nil {
				pk = &planKeys{plan: plan}
				for i := range plan.counters {
					for _, w := range script(&plan.counters[i]).Windows {
						if w.FromMs > 0 {
							pk.begins = append(pk.begins, w.FromMs)
						}
					}
				}
				byPlan[plan] = pk
				order = append(order, pk)
			}
			k = &keyGroups{key: e.Key, counter: s.keys.Counter(p, plan.counters[0].form, e.Key),
				resolution: plan.resolutionMs, begins: pk.begins}
			pk.keys = append(pk.keys, k)
			byKey[e.Key] = k
		}
		k.add(e)
	}
	for _, pk := range order {
		fold := lua.FoldRule{Rule: script(&pk.plan.counters[0])}
		rule := pk.plan.Rules()[0].Name
		for _, k := range pk.keys {
			k.sort()
			s.markQuick(pk.plan, k)
			fold.Groups = append(fold.Groups, k.groups...)
			*folded = append(*folded, FoldedKey{rule, k.key, k.events, k.units})
		}
		for i := range pk.plan.counters[1:] {
			c := &pk.plan.counters[1+i]
			beside := lua.FoldBeside{Rule: script(c)}
			for _, k := range pk.keys {
				beside.Counters = append(beside.Counters, slices.Repeat([]string{s.keys.Counter(p, c.form, k.key)},
					len(k.groups))...)
			}
			fold.Beside = append(fold.Beside, beside)
		}
		folds = append(folds, fold)
	}
	return folds, unmatched
}

// markQuick marks the groups of a key that the script of the common fold may take. One that was near a level
// is tried again now and then, as a fold does not tell how near it is.
func (s *Redis) markQuick(plan *Plan, k *keyGroups) {
	if !plan.quickFold || s.general {
		return
	}
	for i := range k.groups {
		if k.groups[i].ProducerIDs != nil {
			return
		}
	}
	if s.near.has(k.counter) {
		if rand.IntN(8) > 0 {
			return
		}
		s.near.set(k.counter, false)
	}
	for i := range k.groups {
		k.groups[i].Quick = true
	}
}

func (k *keyGroups) add(e Event) {
	k.events, k.units = k.events+1, k.units+e.Count
	for i := len(k.groups) - 1; i >= 0 && e.Ms-k.firsts[i] <= k.resolution; i-- {
		g := &k.groups[i]
		if g.Count == e.Count && (g.ProducerIDs != nil) == (e.ProducerID != "") && k.samePeriods(k.firsts[i], e.Ms) {
			g.IDs = append(g.IDs, e.ID)
			if e.ProducerID != "" {
				g.ProducerIDs = append(g.ProducerIDs, e.ProducerID)
			}
			return
		}
	}
	g := lua.FoldGroup{Counter: k.counter, Count: e.Count, IDs: []string{e.ID}}
	if e.ProducerID != "" {
		g.ProducerIDs = []string{e.ProducerID}
	}
	k.groups = append(k.groups, g)
	k.firsts = append(k.firsts, e.Ms)
}

func (k *keyGroups) samePeriods(a, b int64) bool {
	for _, ms := range k.begins {
		if (a < ms) != (b < ms) {
			return false
		}
	}
	return true
}

// sort orders the groups by their newest event, the time they are put at.
func (k *keyGroups) sort() {
	if len(k.groups) < 2 {
		return
	}
	slices.SortStableFunc(k.groups, func(a, b lua.FoldGroup) int {
		return entry.CompareIDs(a.IDs[len(a.IDs)-1], b.IDs[len(b.IDs)-1])
	})
}

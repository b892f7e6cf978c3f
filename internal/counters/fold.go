package counters

import (
	"cmp"
	"context"
	"slices"

	"github.com/streamcounter/streamcounter/internal/entry"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
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
	// Fields are those of the stored event, by name; rules say of which they count the values.
	Fields map[string]any
}

// Field gives the text of a field of the event; empty where it has none.
func (e Event) Field(name string) string {
	text, _ := e.Fields[name].(string)
	return text
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
	// Keys lists the events of each key, grouped by rule. Events that were counted before are in it too.
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
	// TraceParent and TraceState are the W3C trace context of the fold, empty where it is not traced. They are the
	// same for all batches of a call, and go with the transitions.
	TraceParent, TraceState string
}

// Fold counts a batch of partition p, as FoldBatches does, and gives the IDs of events
// that no rule matches.
func (s *Redis) Fold(ctx context.Context, p int, rules *windows.Rules, events []Event) (Folded, []string, error) {
	folded, unmatched, err := s.FoldBatches(ctx, rules, []Batch{{Partition: p, Events: events}})
	return folded, unmatched[0], err
}

// FoldBatches counts the batches of several partitions in one step and acknowledges their
// events. Each event counts at most once, however often it is sent. Each batch is of another
// partition, and on a Cluster there is one batch. On an error f is zero, but some events may be
// counted. The caller then folds the batches again: that counts nothing twice.
// unmatched has, for each batch, the IDs of the events that no rule matches. The caller
// acknowledges those.
func (s *Redis) FoldBatches(ctx context.Context, rules *windows.Rules, batches []Batch) (f Folded, unmatched [][]string,
	err error) {
	s.noticeAll(rules)
	err = s.retryInPeriod(func() error {
		f, unmatched, err = s.foldBatches(ctx, rules, batches)
		return err
	})
	return f, unmatched, err
}

func (s *Redis) foldBatches(ctx context.Context, rules *windows.Rules, batches []Batch) (f Folded, unmatched [][]string,
	err error) {
	args := lua.FoldArgs{
		Now: s.now(), Group: eventlog.Group, RememberMs: cmp.Or(s.Remember, stream.DefaultRetention).Milliseconds(),
		Partitions: make([]lua.FoldPartition, 0, len(batches)),
	}
	scripts := map[*windows.Plan]*lua.Plan{} // a plan is the same for all partitions of a call
	unmatched = make([][]string, len(batches))
	merged := 0
	var folded []FoldedKey
	for i, b := range batches {
		args.TraceParent, args.TraceState = b.TraceParent, b.TraceState
		var grouped []lua.FoldSection
		grouped, unmatched[i] = s.group(b.Partition, rules, b.Events, scripts, &folded)
		if len(grouped) == 0 {
			continue
		}
		merged += len(b.Events) - len(unmatched[i])
		for _, section := range grouped {
			for i := range section.Keys {
				merged -= len(section.Keys[i].Groups)
			}
		}
		p := b.Partition
		args.Partitions = append(args.Partitions, lua.FoldPartition{
			Events: s.keys.Events(p), Levels: s.keys.Levels(p), Due: s.keys.Due(p), Outbox: s.keys.Outbox(p),
			IDs: s.keys.IDs(p), Sections: grouped,
		})
	}
	if len(args.Partitions) == 0 {
		return Folded{}, unmatched, nil
	}
	reply, err := s.lua.Fold(ctx, args)
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
	resolution int64 // ms
	groups     []lua.FoldGroup
	firsts     []int64 // group → ms of its first event
	begins     []int64 // ms at which periods of windows begin: no group has events of both sides
	plan       *windows.Plan

	events, units int64
}

// group puts a batch into the shape that fold.lua takes. Events of one key
// share a group, and so an entry in its log, when their counts are the same and
// their times lie within the plan's resolution. The same count is what keeps
// the gate exact: XACK tells how many of a group were pending, not which.
func (s *Redis) group(p int, rules *windows.Rules, events []Event, scripts map[*windows.Plan]*lua.Plan,
	folded *[]FoldedKey) (folds []lua.FoldSection, unmatched []string) {
	script := func(p *windows.Plan) *lua.Plan {
		if scripts[p] == nil {
			scripts[p] = s.script(p)
		}
		return scripts[p]
	}
	type planKeys struct {
		plan   *windows.Plan
		keys   []*keyGroups
		begins []int64
	}
	var order []*planKeys
	byPlan := map[*windows.Plan]*planKeys{}
	byKey := make(map[string]*keyGroups, len(events))
	for _, e := range events {
		k := byKey[e.Key]
		if k == nil {
			plan := rules.Match(e.Key)
			if plan == nil {
				unmatched = append(unmatched, e.ID)
				continue
			}
			pk := byPlan[plan]
			if pk == nil {
				pk = &planKeys{plan: plan}
				for _, r := range script(plan).Rules {
					for _, w := range r.Windows {
						if w.FromMs > 0 {
							pk.begins = append(pk.begins, w.FromMs)
						}
					}
				}
				byPlan[plan] = pk
				order = append(order, pk)
			}
			k = &keyGroups{key: e.Key, plan: plan, resolution: plan.ResolutionMs(), begins: pk.begins}
			pk.keys = append(pk.keys, k)
			byKey[e.Key] = k
		}
		k.add(e)
	}
	for _, pk := range order {
		section := lua.FoldSection{Plan: script(pk.plan), Keys: make([]lua.FoldKey, len(pk.keys))}
		rule := pk.plan.Rules()[0].Name
		for i, k := range pk.keys {
			k.sort()
			section.Keys[i] = lua.FoldKey{Meters: s.meters(p, pk.plan.Forms(), k.key), Groups: k.groups}
			*folded = append(*folded, FoldedKey{rule, k.key, k.events, k.units})
		}
		folds = append(folds, section)
	}
	return folds, unmatched
}

func (k *keyGroups) add(e Event) {
	k.events, k.units = k.events+1, k.units+e.Count
	values, _ := k.plan.Values(e.Field) // who has decoded the event has seen the error; a rule may be newer
	for i := len(k.groups) - 1; i >= 0 && e.Ms-k.firsts[i] <= k.resolution; i-- {
		g := &k.groups[i]
		if g.Count == e.Count && slices.Equal(g.Values, values) && (g.ProducerIDs != nil) == (e.ProducerID != "") &&
			k.samePeriods(k.firsts[i], e.Ms) {
			g.IDs = append(g.IDs, e.ID)
			if e.ProducerID != "" {
				g.ProducerIDs = append(g.ProducerIDs, e.ProducerID)
			}
			return
		}
	}
	g := lua.FoldGroup{Count: e.Count, IDs: []string{e.ID}, Values: values}
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

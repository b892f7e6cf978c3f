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
	// ProducerID is the id that its producer gave it, empty if it gave none. If several
	// events of a key have the same id, only the first counts.
	ProducerID string
	// Fields are the fields of the stored event, by name. Rules say which of them have values to count.
	Fields map[string]any
}

// Field returns the text of a field of the event; empty if it has none.
func (e Event) Field(name string) string {
	text, _ := e.Fields[name].(string)
	return text
}

// Folded is the outcome of a fold: how many events it had, by their outcome.
type Folded struct {
	Folded         int64 // counted
	Late           int64 // acknowledged, but out of every window already
	AlreadyCounted int64 // counted before, by any worker
	Duplicate      int64 // sent before by their producer, with the same id
	Transitions    int64 // levels that changed, in the outbox
	Merged         int64 // how many of all events share the log entry of another event
	// Keys lists the events of each key, grouped by plan. It includes events that were counted before.
	Keys []FoldedKey
}

// FoldedKey is the number of events and units that a batch had of one key.
type FoldedKey struct {
	Rule          string // the rule that decides; for a key with only shadow rules, the first of them
	Key           string
	Events, Units int64
}

// Batch is the events of one partition that are folded together.
type Batch struct {
	Partition int
	Events    []Event
	// TraceParent and TraceState are the W3C trace context of the fold, empty if it is not traced. They are the
	// same for all batches of a call, and are written with the transitions.
	TraceParent, TraceState string
}

// Uncounted are the events of a batch that Fold has left out. The caller acknowledges them.
type Uncounted struct {
	Unmatched []string // the IDs of those that no rule matches
	Invalid   []Invalid
}

// Invalid is an event whose values cannot be counted; see windows.Plan.Values.
type Invalid struct {
	Event
	Err error
}

// Fold counts the batches of several partitions in one step and acknowledges their events. Each event counts at
// most once, however often it is sent. No two batches are of the same partition, and on a Cluster there is only
// one batch. If Fold returns an error, f is zero, but some events may have been counted. The caller then folds the
// batches again, which counts no event twice.
func (s *Redis) Fold(ctx context.Context, rules *windows.Rules, batches ...Batch) (f Folded, left []Uncounted,
	err error) {
	s.noticeAll(rules)
	left = make([]Uncounted, len(batches))
	err = s.retryInPeriod(func() error {
		c := foldCall{store: s, rules: rules, plans: s.newCallPlans()}
		for i, b := range batches {
			left[i] = c.add(b)
		}
		f = Folded{}
		if len(c.partitions) == 0 {
			return nil
		}
		got, err := c.run(ctx)
		if err == nil {
			f = got
		}
		return err
	})
	return f, left, err
}

// foldCall is one call of fold.lua for batches of several partitions.
type foldCall struct {
	store      *Redis
	rules      *windows.Rules
	plans      callPlans
	partitions []foldPartition
	trace      string      // the trace context, as fold.lua reads it
	merged     int64       // as in Folded
	keys       []FoldedKey // as in Folded
}

// foldPartition is a partition of the call, with its keys by their plans.
type foldPartition struct {
	partition int
	plans     []*planKeys
}

// add adds a batch. It groups the events by their plans and keys, in the order in which plans and keys occur first. It
// returns the events that it leaves out.
func (c *foldCall) add(b Batch) (left Uncounted) {
	var plans []*planKeys
	known := map[*windows.Plan]*planKeys{}
	byKey := make(map[string]*keyGroups, len(b.Events))
	for _, e := range b.Events {
		k := byKey[e.Key]
		if k == nil {
			plan := c.rules.Match(e.Key)
			if plan == nil {
				left.Unmatched = append(left.Unmatched, e.ID)
				continue
			}
			pk := known[plan]
			if pk == nil {
				pk = &planKeys{plan: plan, place: c.plans.place(plan)}
				pk.begins = c.plans.list[pk.place].Begins()
				known[plan] = pk
			}
			k = &keyGroups{planKeys: pk, key: e.Key, resolution: plan.ResolutionMs()}
			byKey[e.Key] = k
		}
		values, err := k.plan.Values(e.Field)
		if err != nil {
			left.Invalid = append(left.Invalid, Invalid{e, err})
			continue
		}
		k.add(e, values)
		if k.events == 1 {
			if len(k.keys) == 0 {
				plans = append(plans, k.planKeys)
			}
			k.keys = append(k.keys, k)
		}
	}
	if len(plans) == 0 {
		return left
	}
	if b.TraceParent != "" {
		c.trace = b.TraceParent + " " + b.TraceState
	}
	for _, pk := range plans {
		for _, k := range pk.keys {
			slices.SortStableFunc(k.groups, func(a, b group) int { // by the time of their entry
				return entry.CompareIDs(a.ids[len(a.ids)-1], b.ids[len(b.ids)-1])
			})
			c.keys = append(c.keys, FoldedKey{pk.plan.Rules()[0].Name, k.key, k.events, k.units})
			c.merged += k.events - int64(len(k.groups))
		}
	}
	c.partitions = append(c.partitions, foldPartition{b.Partition, plans})
	return left
}

// encode returns the keys and the arguments of fold.lua.
func (c *foldCall) encode() (keys []string, args []any) {
	names, plans := c.store.keys, c.plans.list
	keys, args = make([]string, 0, 5*len(c.partitions)+len(c.keys)), make([]any, 0, 8+len(plans)+4*len(c.keys))
	for _, of := range c.partitions {
		p := of.partition
		keys = append(keys, names.Events(p), names.Levels(p), names.Due(p), names.Outbox(p), names.IDs(p))
	}
	// A producer may append a copy up to one retention after the event, and a worker may count it one retention later.
	remember := 2 * cmp.Or(c.store.Retention, stream.DefaultRetention)
	args = append(args, c.store.Clock().Arg(), eventlog.Group, remember.Milliseconds(),
		len(c.partitions)+16384*len(plans))
	args = lua.AppendTexts(args, plans)
	alone := len(plans) == 1 && len(c.partitions) == 1
	for i, of := range c.partitions {
		for _, pk := range of.plans {
			for n, k := range pk.keys {
				if n%sectionKeys == 0 && !alone {
					args = append(args, section(min(len(pk.keys)-n, sectionKeys), pk.place, i))
				}
				keys = append(keys, c.store.meters(of.partition, pk.plan.Forms(), k.key)...)
				args = k.appendTo(args)
			}
		}
	}
	if c.trace != "" {
		args = append(args, c.trace)
	}
	return keys, args
}

// run runs fold.lua. It is safe to send again: no event is counted twice.
func (c *foldCall) run(ctx context.Context) (Folded, error) {
	keys, args := c.encode()
	r := c.store.lua.Call(ctx, "fold", c.plans.list, keys, args...)
	return Folded{Folded: r.Integer(), Late: r.Integer(), AlreadyCounted: r.Integer(), Duplicate: r.Integer(),
		Transitions: r.Integer(), Merged: c.merged, Keys: c.keys}, r.End()
}

// planKeys are the keys of a batch that share a plan.
type planKeys struct {
	plan   *windows.Plan
	place  int // of the plan, in the call
	keys   []*keyGroups
	begins []int64 // ms at which periods of windows begin; all events of a group are of one period
}

// keyGroups are the groups of a key while a call is prepared. Events of one key
// share a group, and so an entry in its log, if their counts are the same and
// their times are within the plan's resolution. The counts must be the same because
// XACK returns how many events of a group were pending, but not which.
type keyGroups struct {
	*planKeys
	key        string
	resolution int64 // ms
	groups     []group
	firsts     []int64          // group → ms of its first event
	countOf    map[string]int64 // id of a producer → count of the first event with it

	events, units int64
}

// group is one or more events of one key with the same count.
type group struct {
	count int64
	ids   []string // ascending
	// producerIDs are the ids that the producers gave the events, nil if they gave none.
	producerIDs []string
	values      []string // one per meter of the plan that counts values; empty: the events have none
}

// add adds an event with its values.
func (k *keyGroups) add(e Event, values []string) {
	if count, duplicate := k.countOf[e.ProducerID]; duplicate {
		e.Count = count // only the first event counts; groups are sorted, so any of them may come first
	} else if e.ProducerID != "" {
		if k.countOf == nil {
			k.countOf = map[string]int64{}
		}
		k.countOf[e.ProducerID] = e.Count
	}
	k.events, k.units = k.events+1, k.units+e.Count
	for i := len(k.groups) - 1; i >= 0 && e.Ms-k.firsts[i] <= k.resolution; i-- {
		g, first := &k.groups[i], k.firsts[i]
		between := func(begin int64) bool { return (first < begin) != (e.Ms < begin) }
		if g.count == e.Count && slices.Equal(g.values, values) && (g.producerIDs != nil) == (e.ProducerID != "") &&
			!slices.ContainsFunc(k.begins, between) {
			g.ids = append(g.ids, e.ID)
			if e.ProducerID != "" {
				g.producerIDs = append(g.producerIDs, e.ProducerID)
			}
			return
		}
	}
	g := group{count: e.Count, ids: []string{e.ID}, values: values}
	if e.ProducerID != "" {
		g.producerIDs = []string{e.ProducerID}
	}
	k.groups = append(k.groups, g)
	k.firsts = append(k.firsts, e.Ms)
}

// appendTo adds the groups to the arguments.
func (k *keyGroups) appendTo(args []any) []any {
	for i := range k.groups {
		g := &k.groups[i]
		n := len(g.ids)
		if i < len(k.groups)-1 {
			n = -n
		}
		args = append(args, g.count, n)
		for j, id := range g.ids {
			if g.producerIDs != nil {
				id += " " + g.producerIDs[j]
			}
			args = append(args, id)
		}
		args = appendValues(args, g.values)
	}
	return args
}

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

// Folded is the outcome of a fold.
type Folded struct {
	lua.FoldReply
	Merged int64 // how many of all events shared the entry of another event
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

// Fold counts the batches of several partitions in one step and acknowledges their
// events. Each event counts at most once, however often it is sent. Each batch is of another
// partition. On a Cluster there is only one batch. If Fold returns an error, f is zero, but some
// events may have been counted. The caller then folds the batches again, which counts no event twice.
// unmatched has, for each batch, the IDs of the events that no rule matches. The caller
// acknowledges them.
func (s *Redis) Fold(ctx context.Context, rules *windows.Rules, batches ...Batch) (f Folded, unmatched [][]string,
	err error) {
	s.noticeAll(rules)
	unmatched = make([][]string, len(batches))
	// A copy may be appended a retention after its event, and counted a retention after that.
	remember := 2 * cmp.Or(s.Retention, stream.DefaultRetention)
	err = s.retryInPeriod(func() error {
		c := foldCall{store: s, rules: rules, plans: s.newCallPlans(), args: lua.FoldArgs{Now: s.Clock(),
			Group: eventlog.Group, RememberMs: remember.Milliseconds(),
			Partitions: make([]lua.FoldPartition, 0, len(batches))}}
		for i, b := range batches {
			unmatched[i] = c.add(b)
		}
		f = Folded{}
		if len(c.args.Partitions) == 0 {
			return nil
		}
		c.args.Plans = c.plans.list
		reply, err := s.lua.Fold(ctx, c.args)
		if err == nil {
			f = Folded{FoldReply: reply, Merged: c.merged, Keys: c.keys}
		}
		return err
	})
	return f, unmatched, err
}

// foldCall converts batches to the arguments of fold.lua.
type foldCall struct {
	store  *Redis
	rules  *windows.Rules
	args   lua.FoldArgs
	plans  callPlans
	merged int64       // as in Folded
	keys   []FoldedKey // as in Folded
}

// add adds a batch. It groups the events by their plans and keys, in the order in which plans and keys occur first. It
// returns the IDs of the events that no rule matches.
func (c *foldCall) add(b Batch) (unmatched []string) {
	var plans []*planKeys
	known := map[*windows.Plan]*planKeys{}
	byKey := make(map[string]*keyGroups, len(b.Events))
	for _, e := range b.Events {
		k := byKey[e.Key]
		if k == nil {
			plan := c.rules.Match(e.Key)
			if plan == nil {
				unmatched = append(unmatched, e.ID)
				continue
			}
			pk := known[plan]
			if pk == nil {
				pk = &planKeys{plan: plan, place: c.plans.place(plan)}
				pk.begins = c.plans.list[pk.place].Begins()
				known[plan], plans = pk, append(plans, pk)
			}
			k = &keyGroups{planKeys: pk, key: e.Key, resolution: plan.ResolutionMs()}
			pk.keys, byKey[e.Key] = append(pk.keys, k), k
		}
		k.add(e)
	}
	if len(plans) == 0 {
		return unmatched
	}
	p, names := b.Partition, c.store.keys
	c.args.TraceParent, c.args.TraceState = b.TraceParent, b.TraceState
	partition := lua.FoldPartition{Events: names.Events(p), Levels: names.Levels(p), Due: names.Due(p),
		Outbox: names.Outbox(p), IDs: names.IDs(p)}
	for _, pk := range plans {
		section := lua.FoldSection{Plan: pk.place, Keys: make([]lua.FoldKey, len(pk.keys))}
		for i, k := range pk.keys {
			slices.SortStableFunc(k.groups, func(a, b lua.FoldGroup) int { // by the time of their entry
				return entry.CompareIDs(a.IDs[len(a.IDs)-1], b.IDs[len(b.IDs)-1])
			})
			section.Keys[i] = lua.FoldKey{Meters: c.store.meters(p, pk.plan.Forms(), k.key), Groups: k.groups}
			c.keys = append(c.keys, FoldedKey{pk.plan.Rules()[0].Name, k.key, k.events, k.units})
			c.merged += k.events - int64(len(k.groups))
		}
		partition.Sections = append(partition.Sections, section)
	}
	c.args.Partitions = append(c.args.Partitions, partition)
	return unmatched
}

// planKeys are the keys of a batch that share a plan.
type planKeys struct {
	plan   *windows.Plan
	place  int // of the plan, in the call
	keys   []*keyGroups
	begins []int64 // ms at which periods of windows begin: no group has events from before and after one
}

// keyGroups are the groups of a key while a call is prepared. Events of one key
// share a group, and so an entry in its log, if their counts are the same and
// their times are within the plan's resolution. The counts must be the same because
// XACK returns how many events of a group were pending, but not which.
type keyGroups struct {
	*planKeys
	key        string
	resolution int64 // ms
	groups     []lua.FoldGroup
	firsts     []int64 // group → ms of its first event

	events, units int64
}

func (k *keyGroups) add(e Event) {
	k.events, k.units = k.events+1, k.units+e.Count
	values, _ := k.plan.Values(e.Field) // an error was handled when the event was decoded, unless the rule is newer
	for i := len(k.groups) - 1; i >= 0 && e.Ms-k.firsts[i] <= k.resolution; i-- {
		g, first := &k.groups[i], k.firsts[i]
		between := func(begin int64) bool { return (first < begin) != (e.Ms < begin) }
		if g.Count == e.Count && slices.Equal(g.Values, values) && (g.ProducerIDs != nil) == (e.ProducerID != "") &&
			!slices.ContainsFunc(k.begins, between) {
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

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

// Folded says what became of the events of a fold.
type Folded struct {
	lua.FoldReply
	Merged int64 // of all events: those that shared another's entry
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

// Fold counts the batches of several partitions in one step and acknowledges their
// events. Each event counts at most once, however often it is sent. Each batch is of another
// partition, and on a Cluster there is one batch. On an error f is zero, but some events may be
// counted. The caller then folds the batches again: that counts nothing twice.
// unmatched has, for each batch, the IDs of the events that no rule matches. The caller
// acknowledges those.
func (s *Redis) Fold(ctx context.Context, rules *windows.Rules, batches ...Batch) (f Folded, unmatched [][]string,
	err error) {
	s.noticeAll(rules)
	unmatched = make([][]string, len(batches))
	err = s.retryInPeriod(func() (err error) {
		call := s.newFoldCall(rules, len(batches))
		for i, b := range batches {
			unmatched[i] = call.add(b)
		}
		f, err = call.run(ctx)
		return err
	})
	return f, unmatched, err
}

// foldCall puts batches into the shape that fold.lua takes.
type foldCall struct {
	store  *Redis
	rules  *windows.Rules
	args   lua.FoldArgs
	plans  map[*windows.Plan]*lua.Plan // one for all partitions
	folded Folded
}

func (s *Redis) newFoldCall(rules *windows.Rules, batches int) *foldCall {
	return &foldCall{store: s, rules: rules, plans: map[*windows.Plan]*lua.Plan{}, args: lua.FoldArgs{
		Now: s.Clock(), Group: eventlog.Group, RememberMs: cmp.Or(s.Remember, stream.DefaultRetention).Milliseconds(),
		Partitions: make([]lua.FoldPartition, 0, batches),
	}}
}

func (c *foldCall) run(ctx context.Context) (Folded, error) {
	if len(c.args.Partitions) == 0 {
		return Folded{}, nil
	}
	reply, err := c.store.lua.Fold(ctx, c.args)
	if err != nil {
		return Folded{}, err
	}
	c.folded.FoldReply = reply
	return c.folded, nil
}

// add takes in a batch. It gives the IDs of the events that no rule matches.
func (c *foldCall) add(b Batch) (unmatched []string) {
	plans, unmatched := c.byPlan(b.Events)
	if len(plans) == 0 {
		return unmatched
	}
	p, keys := b.Partition, c.store.keys
	c.args.TraceParent, c.args.TraceState = b.TraceParent, b.TraceState
	partition := lua.FoldPartition{Events: keys.Events(p), Levels: keys.Levels(p), Due: keys.Due(p),
		Outbox: keys.Outbox(p), IDs: keys.IDs(p)}
	for _, pk := range plans {
		section := lua.FoldSection{Plan: c.luaPlan(pk.plan), Keys: make([]lua.FoldKey, len(pk.keys))}
		rule := pk.plan.Rules()[0].Name
		for i, k := range pk.keys {
			k.sort()
			section.Keys[i] = lua.FoldKey{Meters: c.store.meters(p, pk.plan.Forms(), k.key), Groups: k.groups}
			c.folded.Keys = append(c.folded.Keys, FoldedKey{rule, k.key, k.events, k.units})
			c.folded.Merged += k.events - int64(len(k.groups))
		}
		partition.Sections = append(partition.Sections, section)
	}
	c.args.Partitions = append(c.args.Partitions, partition)
	return unmatched
}

// luaPlan gives a plan as the library takes it. It is the same for the whole call.
func (c *foldCall) luaPlan(p *windows.Plan) *lua.Plan {
	if c.plans[p] == nil {
		c.plans[p] = c.store.luaPlan(p)
	}
	return c.plans[p]
}

// planKeys are the keys of a batch that share a plan.
type planKeys struct {
	plan   *windows.Plan
	keys   []*keyGroups
	begins []int64 // ms at which periods of windows begin: no group has events of both sides
}

// byPlan sorts events by their plans and keys, in the order in which these come first. It gives the IDs of those that
// no rule matches.
func (c *foldCall) byPlan(events []Event) (plans []*planKeys, unmatched []string) {
	known := map[*windows.Plan]*planKeys{}
	byKey := make(map[string]*keyGroups, len(events))
	for _, e := range events {
		k := byKey[e.Key]
		if k == nil {
			plan := c.rules.Match(e.Key)
			if plan == nil {
				unmatched = append(unmatched, e.ID)
				continue
			}
			pk := known[plan]
			if pk == nil {
				pk = &planKeys{plan: plan, begins: c.luaPlan(plan).Begins()}
				known[plan], plans = pk, append(plans, pk)
			}
			k = &keyGroups{planKeys: pk, key: e.Key, resolution: plan.ResolutionMs()}
			pk.keys, byKey[e.Key] = append(pk.keys, k), k
		}
		k.add(e)
	}
	return plans, unmatched
}

// keyGroups are the groups of a key while a batch is put together. Events of one key
// share a group, and so an entry in its log, when their counts are the same and
// their times lie within the plan's resolution. The same count is what keeps
// the gate exact: XACK tells how many of a group were pending, not which.
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

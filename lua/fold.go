package lua

import "context"

// FoldGroup is one or more events of one key with the same count.
type FoldGroup struct {
	Count int64
	IDs   []string // rising
	// ProducerIDs are the ids that the producers gave the events, nil if they gave none.
	ProducerIDs []string
	Values      []string // one per meter of the plan that counts values; empty: the events have none
}

// FoldKey is a key, by its meters' keys in Redis, and its groups, in time order.
type FoldKey struct {
	Meters []string
	Groups []FoldGroup
}

// FoldSection is the keys that share a plan.
type FoldSection struct {
	Plan int // index into FoldArgs.Plans
	Keys []FoldKey
}

// FoldPartition has the events of one partition to fold, and the names of its keys.
type FoldPartition struct {
	Events, Levels, Due, Outbox, IDs string
	Sections                         []FoldSection
}

// FoldArgs are the arguments of one fold. On a Cluster they have only one partition.
type FoldArgs struct {
	Now        Now
	Group      string
	RememberMs int64 // how long ids are remembered
	// TraceParent and TraceState are written with the transitions, for their publisher; empty: none.
	TraceParent, TraceState string
	Plans                   []*Plan
	Partitions              []FoldPartition
}

// FoldReply counts the events of a fold by their outcome.
type FoldReply struct {
	Folded         int64 // counted
	Late           int64 // acknowledged, but out of every window already
	AlreadyCounted int64 // counted before, by any worker
	Duplicate      int64 // sent before by their producer, with the same id
	Transitions    int64 // levels that changed, in the outbox
}

// sectionKeys is the largest number of keys in a section (section_at in plan.lua).
const sectionKeys = 8191

// Fold runs fold.lua. It is safe to send again: no event is counted twice.
func (s *Caller) Fold(ctx context.Context, a FoldArgs) (FoldReply, error) {
	names, values := 5*len(a.Partitions), 8+len(a.Plans)
	for _, p := range a.Partitions {
		for _, section := range p.Sections {
			names += len(section.Keys) * len(a.Plans[section.Plan].Meters)
			values += 2 + 3*len(section.Keys)
		}
	}
	keys, args := make([]string, 0, names), make([]any, 0, values)
	for _, p := range a.Partitions {
		keys = append(keys, p.Events, p.Levels, p.Due, p.Outbox, p.IDs)
	}
	args = append(args, a.Now.arg(), a.Group, a.RememberMs, len(a.Partitions)+16384*len(a.Plans))
	args = appendTexts(args, a.Plans)
	alone := len(a.Plans) == 1 && len(a.Partitions) == 1
	for i, p := range a.Partitions {
		for _, of := range p.Sections {
			for n := range of.Keys {
				if left := len(of.Keys) - n; n%sectionKeys == 0 && !alone {
					args = append(args, section(min(left, sectionKeys), of.Plan+1, i+1))
				}
				keys = append(keys, of.Keys[n].Meters...)
				args = of.Keys[n].appendTo(args)
			}
		}
	}
	if a.TraceParent != "" {
		args = append(args, a.TraceParent+" "+a.TraceState)
	}
	r := s.call(ctx, "fold", a.Plans, keys, args)
	return FoldReply{Folded: r.integer(), Late: r.integer(), AlreadyCounted: r.integer(), Duplicate: r.integer(),
		Transitions: r.integer()}, r.end()
}

func (k *FoldKey) appendTo(args []any) []any {
	for i := range k.Groups {
		g := &k.Groups[i]
		n := len(g.IDs)
		if i < len(k.Groups)-1 {
			n = -n
		}
		args = append(args, g.Count, n)
		for j, id := range g.IDs {
			if g.ProducerIDs != nil {
				id += " " + g.ProducerIDs[j]
			}
			args = append(args, id)
		}
		args = appendValues(args, g.Values)
	}
	return args
}

package lua

import (
	"context"
)

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
	Plan *Plan
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
	Partitions              []FoldPartition
}

// FoldReply counts the events of a fold by their outcome.
type FoldReply struct {
	Folded         int64 // counted
	Late           int64 // acknowledged, but out of every window already
	AlreadyCounted int64 // counted before, by any worker
	Duplicate      int64 // sent before by their producer, with the same id
	Transitions    int64 // levels that changed, in the outbox
	Corrupt        int64 // meters that held foreign data; they start again from zero
}

// sectionKeys is the largest number of keys in a section (section_at in plan.lua).
const sectionKeys = 8191

// encode returns the arguments of fold.lua.
func (a *FoldArgs) encode() (keys []string, args []any, algorithms []string) {
	names, values := 5*len(a.Partitions), 8
	for _, p := range a.Partitions {
		for _, section := range p.Sections {
			names += len(section.Keys) * len(section.Plan.Meters)
			values += 2 + 3*len(section.Keys)
		}
	}
	keys, args = make([]string, 0, names), make([]any, 0, values)
	var plans planNumbers
	for _, p := range a.Partitions {
		keys = append(keys, p.Events, p.Levels, p.Due, p.Outbox, p.IDs)
		for _, section := range p.Sections {
			plans.of(section.Plan)
		}
	}
	args = append(args, a.Now.arg(), a.Group, a.RememberMs, len(a.Partitions)+16384*len(plans.texts))
	args = append(args, plans.texts...)
	alone := len(plans.texts) == 1 && len(a.Partitions) == 1
	for i, p := range a.Partitions {
		for _, s := range p.Sections {
			for n := range s.Keys {
				if left := len(s.Keys) - n; n%sectionKeys == 0 && !alone {
					args = append(args, section(min(left, sectionKeys), plans.of(s.Plan), i+1))
				}
				keys = append(keys, s.Keys[n].Meters...)
				args = s.Keys[n].appendTo(args)
			}
		}
	}
	if a.TraceParent != "" {
		args = append(args, a.TraceParent+" "+a.TraceState)
	}
	return keys, args, plans.algorithms
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

// Fold runs fold.lua. It is safe to send again: no event is counted twice.
func (s *Server) Fold(ctx context.Context, a FoldArgs) (FoldReply, error) {
	keys, args, algorithms := a.encode()
	n, err := s.integers(ctx, "fold", algorithms, keys, args, 6)
	if err != nil {
		return FoldReply{}, err
	}
	return FoldReply{Folded: n[0], Late: n[1], AlreadyCounted: n[2], Duplicate: n[3], Transitions: n[4],
		Corrupt: n[5]}, nil
}

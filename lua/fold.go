package lua

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// FoldGroup is one or more events of one counter with the same count.
type FoldGroup struct {
	Counter string
	Count   int64
	IDs     []string // rising
	// ProducerIDs are the ids that the producers gave the events, nil where they gave none.
	ProducerIDs []string
	// Quick: the script of the common fold may be asked first. It is so of all groups of a counter or of none.
	Quick bool
}

// FoldRule is a rule and the groups of its counters; those of one counter
// stand together, in time order.
type FoldRule struct {
	Rule   *Rule
	Groups []FoldGroup
	Beside []FoldBeside
}

// FoldBeside is a further counter for each group of a FoldRule, in their order.
type FoldBeside struct {
	Rule     *Rule
	Counters []string
}

// FoldPartition is what is folded of one partition, and the names of its keys.
type FoldPartition struct {
	Events, Levels, Due, Outbox, IDs string
	Rules                            []FoldRule
}

// FoldArgs is what one call folds. On a Cluster it is of one partition.
type FoldArgs struct {
	Now        Now
	Group      string
	RememberMs int64 // how long ids are remembered
	// TraceParent goes with the transitions that are written, for who publishes them; empty: none.
	TraceParent string
	Partitions  []FoldPartition
}

// FoldReply is what a batch came to.
type FoldReply struct {
	Folded         int64 // events counted
	Late           int64 // events too late for every window
	AlreadyCounted int64 // events that somebody has acknowledged before
	Duplicate      int64 // events whose producer had sent them before
	Transitions    int64 // transitions written to the outbox
	Corrupt        int64 // counters found corrupt, which count as empty
	// Quick events are those that the script of the common fold took, and Left are the counters it left to
	// the general one, one for each group.
	Quick int64
	Left  []string
}

// foldEncoder puts the arguments of fold.lua together.
type foldEncoder struct {
	keys       []string
	args       []any
	algorithms []string
	numbers    map[*Rule]int // from 1, in the order in which args has them
	sections   []any         // each three numbers
}

func (a *FoldArgs) encode() (keys []string, args []any, algorithms []string) {
	groups, ids, rules := 0, 0, 0
	for _, p := range a.Partitions {
		for _, r := range p.Rules {
			groups += len(r.Groups) * (1 + len(r.Beside))
			rules += 1 + len(r.Beside)
			for _, g := range r.Groups {
				ids += len(g.IDs)
			}
		}
	}
	e := foldEncoder{
		keys: make([]string, 0, 5*len(a.Partitions)+groups), args: make([]any, 0, 5+19*rules+2*groups+ids),
		algorithms: make([]string, 0, 1), numbers: make(map[*Rule]int, 1), sections: make([]any, 0, 3*rules),
	}
	for _, p := range a.Partitions {
		e.keys = append(e.keys, p.Events, p.Levels, p.Due, p.Outbox, p.IDs)
	}
	e.args = append(e.args, a.Now.arg(), a.Group, a.RememberMs, len(a.Partitions), 0)
	e.addCounters(a.Partitions)
	e.args[4] = len(e.numbers)
	e.args = append(e.args, e.sections...)
	for _, p := range a.Partitions {
		for _, r := range p.Rules {
			for i := range r.Groups {
				e.addGroup(&r.Groups[i])
			}
		}
	}
	if a.TraceParent != "" {
		e.args = append(e.args, a.TraceParent)
	}
	return e.keys, e.args, e.algorithms
}

// addCounters adds the rules, the counters and their sections: first those of the
// groups, then the further ones.
func (e *foldEncoder) addCounters(partitions []FoldPartition) {
	for i, p := range partitions {
		for _, r := range p.Rules {
			e.sections = append(e.sections, len(r.Groups), e.number(r.Rule), i+1)
			for _, g := range r.Groups {
				e.keys = append(e.keys, g.Counter)
			}
		}
	}
	section := 0
	for _, p := range partitions {
		for _, r := range p.Rules {
			section++
			for _, b := range r.Beside {
				e.sections = append(e.sections, len(b.Counters), e.number(b.Rule), -section)
				e.keys = append(e.keys, b.Counters...)
			}
		}
	}
}

// number gives a rule's number. Each rule stands in the arguments once.
func (e *foldEncoder) number(r *Rule) int {
	n, ok := e.numbers[r]
	if !ok {
		n = len(e.numbers) + 1
		e.numbers[r] = n
		e.args = r.appendTo(e.args)
		e.algorithms = r.addAlgorithms(e.algorithms)
	}
	return n
}

func (e *foldEncoder) addGroup(g *FoldGroup) {
	e.args = append(e.args, g.Count, len(g.IDs))
	for i, id := range g.IDs {
		if g.ProducerIDs != nil {
			id += " " + g.ProducerIDs[i]
		}
		e.args = append(e.args, id)
	}
}

// Fold runs the script of the common fold over the quick groups, and fold.lua over what that
// leaves and all others. It is safe to send again: what was counted is not counted twice. On an
// error the reply has what was counted before it.
func Fold(ctx context.Context, c redis.Scripter, a FoldArgs) (FoldReply, error) {
	var reply FoldReply
	if q := a.quick(); q != nil {
		var err error
		if reply, err = q.run(ctx, c, &a); err != nil || len(a.Partitions) == 0 {
			return reply, err
		}
	}
	keys, args, algorithms := a.encode()
	n, err := eval(ctx, c, "fold", algorithms, keys, args, 6)
	if err != nil {
		return reply, err
	}
	reply.Folded += n[0]
	reply.Late += n[1]
	reply.AlreadyCounted += n[2]
	reply.Duplicate, reply.Transitions, reply.Corrupt = n[3], n[4], n[5]
	return reply, nil
}

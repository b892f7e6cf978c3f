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

// FoldArgs is one batch of one partition.
type FoldArgs struct {
	Events, Levels, Due, Outbox, IDs string
	Now                              Now
	Group                            string
	RememberMs                       int64 // how long ids are remembered
	Rules                            []FoldRule
}

// FoldReply is what a batch came to.
type FoldReply struct {
	Folded         int64 // events counted
	Late           int64 // events too late for every window
	AlreadyCounted int64 // events that somebody has acknowledged before
	Duplicate      int64 // events whose producer had sent them before
	Transitions    int64 // transitions written to the outbox
	Corrupt        int64 // counters found corrupt, which count as empty
}

func (a *FoldArgs) encode() (keys []string, args []any, algorithms []string) {
	groups, ids, rules := 0, 0, len(a.Rules)
	for _, r := range a.Rules {
		groups += len(r.Groups) * (1 + len(r.Beside))
		rules += len(r.Beside)
		for _, g := range r.Groups {
			ids += len(g.IDs)
		}
	}
	keys = append(make([]string, 0, 5+groups), a.Events, a.Levels, a.Due, a.Outbox, a.IDs)
	args = append(make([]any, 0, 4+16*rules+2*groups+ids), a.Now.arg(), a.Group, a.RememberMs, rules)
	algorithms = make([]string, 0, 1)
	for _, r := range a.Rules {
		args = r.Rule.appendTo(append(args, len(r.Groups)))
		algorithms = with(algorithms, r.Rule.Algorithm)
		for _, g := range r.Groups {
			keys = append(keys, g.Counter)
		}
	}
	for i, r := range a.Rules {
		for _, b := range r.Beside {
			args = b.Rule.appendTo(append(args, -(i + 1)))
			algorithms = with(algorithms, b.Rule.Algorithm)
			keys = append(keys, b.Counters...)
		}
	}
	for _, r := range a.Rules {
		for _, g := range r.Groups {
			args = append(args, g.Count, len(g.IDs))
			for i, id := range g.IDs {
				if g.ProducerIDs != nil {
					id += " " + g.ProducerIDs[i]
				}
				args = append(args, id)
			}
		}
	}
	return keys, args, algorithms
}

// Fold runs fold.lua. It is safe to send again: what was counted is not counted twice.
func Fold(ctx context.Context, c redis.Scripter, a FoldArgs) (FoldReply, error) {
	keys, args, algorithms := a.encode()
	n, err := eval(ctx, c, "fold", algorithms, keys, args, 6)
	if err != nil {
		return FoldReply{}, err
	}
	return FoldReply{n[0], n[1], n[2], n[3], n[4], n[5]}, nil
}

package lua

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// HasQuickFold says whether an algorithm has a script for the common fold.
func HasQuickFold(algorithm string) bool { return isFile("quick-fold-" + algorithm) }

// fewQuick groups are not worth a call of their own where the general script is called anyway.
const fewQuick = 3

// quickFold is what goes to the script of the common fold: the quick groups of one algorithm,
// by rule.
type quickFold struct {
	algorithm string
	rules     []*Rule
	groups    [][]quickGroup // by rule
}

// quickGroup says where a group stands.
type quickGroup struct {
	partition int // in FoldArgs
	group     *FoldGroup
}

// quick gathers the quick groups; nil where the general script alone is to be asked.
func (a *FoldArgs) quick() *quickFold {
	var q quickFold
	quick, others := 0, 0
	for p := range a.Partitions {
		for _, r := range a.Partitions[p].Rules {
			for i := range r.Groups {
				if !r.Groups[i].Quick || len(q.rules) > 0 && r.Rule.Algorithm != q.algorithm {
					others++
					continue
				}
				quick++
				at := slices.Index(q.rules, r.Rule)
				if at < 0 {
					at = len(q.rules)
					q.algorithm = r.Rule.Algorithm
					q.rules, q.groups = append(q.rules, r.Rule), append(q.groups, nil)
				}
				q.groups[at] = append(q.groups[at], quickGroup{p, &r.Groups[i]})
			}
		}
	}
	if quick == 0 || others > 0 && quick < fewQuick {
		return nil
	}
	return &q
}

func (q *quickFold) encode(a *FoldArgs) (keys []string, args []any) {
	args = append(args, a.Now.arg(), a.Group, len(a.Partitions))
	for _, p := range a.Partitions {
		keys = append(keys, p.Events)
	}
	for r, rule := range q.rules {
		args = append(args, len(q.groups[r]), rule.SpanMs, rule.Setting, len(rule.Windows))
		for _, w := range rule.Windows {
			args = append(args, w.Ms, w.Lowest)
		}
		for _, g := range q.groups[r] {
			keys = append(keys, g.group.Counter)
			args = append(args, g.partition+1, g.group.Count, len(g.group.IDs))
			for _, id := range g.group.IDs {
				args = append(args, id)
			}
		}
	}
	return keys, args
}

// run folds what it can, and takes it out of a. It is safe to send again.
func (q *quickFold) run(ctx context.Context, c redis.Scripter, a *FoldArgs) (FoldReply, error) {
	keys, args := q.encode(a)
	v, err := script("quick-fold-"+q.algorithm, nil).Run(ctx, c, keys, args...).Int64Slice()
	if err != nil {
		return FoldReply{}, fmt.Errorf("quick fold script: %w", err)
	}
	list := slices.Concat(q.groups...)
	if len(v) < 2 || len(v) > 2+len(list) {
		return FoldReply{}, fmt.Errorf("quick fold script: reply of %d integers for %d groups", len(v), len(list))
	}
	reply := FoldReply{Folded: v[0], AlreadyCounted: v[1]}
	left := make(map[*FoldGroup]bool, len(v)-2)
	for _, i := range v[2:] {
		if i < 1 || i > int64(len(list)) {
			return FoldReply{}, fmt.Errorf("quick fold script: the reply names group %d of %d", i, len(list))
		}
		left[list[i-1].group] = true
		reply.Left = append(reply.Left, list[i-1].group.Counter)
	}
	done := make(map[*FoldGroup]bool, len(list)-len(left))
	for _, g := range list {
		if !left[g.group] {
			done[g.group] = true
			reply.Quick += int64(len(g.group.IDs))
		}
	}
	a.without(done)
	return reply, nil
}

// without takes groups out, and what has none then.
func (a *FoldArgs) without(done map[*FoldGroup]bool) {
	partitions := a.Partitions[:0]
	for _, p := range a.Partitions {
		rules := make([]FoldRule, 0, len(p.Rules))
		for _, r := range p.Rules {
			groups := make([]FoldGroup, 0, len(r.Groups))
			for i := range r.Groups {
				if !done[&r.Groups[i]] {
					groups = append(groups, r.Groups[i])
				}
			}
			if r.Groups = groups; len(groups) > 0 {
				rules = append(rules, r)
			}
		}
		if p.Rules = rules; len(rules) > 0 {
			partitions = append(partitions, p)
		}
	}
	a.Partitions = partitions
}

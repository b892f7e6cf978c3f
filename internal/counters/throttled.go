package counters

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/windows"
)

// peekStep is how many keys one script call reads.
const peekStep = 100

// ThrottledPage returns the first n decisions that follow the place `after`, sorted by their end and key, each with
// the present use of its window, and the `after` of the next page, "" if there is none. keep selects decisions; nil
// keeps all. It reads all records of levels, but has only one page in memory.
func (s *Redis) ThrottledPage(ctx context.Context, rules *windows.Rules, n int, after string,
	keep func(api.Throttled) bool) (list []api.Throttled, next string, err error) {
	pager, err := newThrottledPager(n, after)
	if err != nil {
		return nil, "", err
	}
	for t, err := range s.ThrottledUnder(ctx, rules) {
		if err != nil {
			return nil, "", err
		}
		if keep == nil || keep(t) {
			pager.add(t)
		}
	}
	list, next = pager.page()
	return list, next, s.fillUsed(ctx, rules, list)
}

// throttledPager finds the first n decisions after a place.
type throttledPager struct {
	after throttledPlace
	first firstN[api.Throttled] // the first n + 1: if there are more than n, there is another page
}

func newThrottledPager(n int, after string) (p *throttledPager, err error) {
	p = &throttledPager{first: firstN[api.Throttled]{n: n + 1, compare: comparePlaces}}
	if after != "" {
		p.after, err = parsePlace(after)
	}
	return p, err
}

func (p *throttledPager) add(t api.Throttled) {
	if placeOf(t).compare(p.after) > 0 {
		p.first.add(t)
	}
}

// page returns the decisions in order, and the `after` of the next page.
func (p *throttledPager) page() (list []api.Throttled, next string) {
	list, n := p.first.sorted(), p.first.n-1
	if len(list) <= n {
		return list, ""
	}
	return list[:n], placeOf(list[n-1]).String()
}

// ThrottledUnder is Throttled, but with the real end and the reason of each block.
func (s *Redis) ThrottledUnder(ctx context.Context, rules *windows.Rules) iter.Seq2[api.Throttled, error] {
	return func(yield func(api.Throttled, error) bool) {
		for t, err := range s.Throttled(ctx) {
			if s.fillBlock(rules, &t) && !yield(t, err) {
				return
			}
		}
	}
}

// fillUsed sets the present use of the decisions' windows.
func (s *Redis) fillUsed(ctx context.Context, rules *windows.Rules, list []api.Throttled) error {
	byShard := map[int][]int{}
	for i, t := range list {
		if plan := rules.Match(t.Key); plan != nil && !t.IsBlock() {
			byShard[s.Shard(t.Key)] = append(byShard[s.Shard(t.Key)], i)
		}
	}
	for _, indexes := range byShard {
		for step := range slices.Chunk(indexes, peekStep) {
			err := s.retryInPeriod(func() error { return s.fillStep(ctx, rules, list, step) })
			if err != nil {
				return fmt.Errorf("looking at throttled keys: %w", err)
			}
		}
	}
	return nil
}

func (s *Redis) fillStep(ctx context.Context, rules *windows.Rules, list []api.Throttled, step []int) error {
	var keys []Key
	plans := make([]*windows.Plan, len(step))
	for j, i := range step {
		if plans[j] = rules.Match(list[i].Key); plans[j] != nil {
			keys = append(keys, s.Key(plans[j], list[i].Key))
		}
	}
	got, err := s.peek(ctx, keys)
	if err != nil {
		return err
	}
	for j, i := range step {
		if plan := plans[j]; plan != nil {
			plan.FillThrottled(got[0], &list[i])
			if plan.Live != nil && plan.Live.Name == list[i].Rule {
				list[i].InForce = plan.State(got[0]).InForce
			}
			got = got[1:]
		}
	}
	return nil
}

// throttledPlace is the place of a decision in the list.
type throttledPlace struct {
	untilMs   int64
	key, rule string
}

func placeOf(t api.Throttled) throttledPlace {
	if t.UntilMs == 0 { // a block without an end comes last
		return throttledPlace{math.MaxInt64, t.Key, t.Rule}
	}
	return throttledPlace{t.UntilMs, t.Key, t.Rule}
}

func (a throttledPlace) compare(b throttledPlace) int {
	return cmp.Or(cmp.Compare(a.untilMs, b.untilMs), strings.Compare(a.key, b.key), strings.Compare(a.rule, b.rule))
}

func comparePlaces(a, b api.Throttled) int { return placeOf(a).compare(placeOf(b)) }

// String has the key last, because a key may contain any character.
func (a throttledPlace) String() string { return fmt.Sprintf("%d/%s/%s", a.untilMs, a.rule, a.key) }

func parsePlace(text string) (throttledPlace, error) {
	until, rest, _ := strings.Cut(text, "/")
	rule, key, ok := strings.Cut(rest, "/")
	ms, err := strconv.ParseInt(until, 10, 64)
	if !ok || err != nil || ms < 0 {
		return throttledPlace{}, fmt.Errorf("%w: after=%s, expected `next` of a page", api.ErrBadRequest,
			api.Shorten(text))
	}
	return throttledPlace{ms, key, rule}, nil
}

// Throttled returns the keys that are throttled now. A key may come twice if it
// changes meanwhile.
func (s *Redis) Throttled(ctx context.Context) iter.Seq2[api.Throttled, error] {
	return func(yield func(api.Throttled, error) bool) {
		for p := range s.keys.Partitions {
			for r, err := range s.levelRecords(ctx, p) {
				t, ok := parseThrottle(r.field, r.text)
				if (ok || err != nil) && !yield(t, err) || err != nil {
					return
				}
			}
		}
	}
}

// CountThrottled adds the throttled keys of partition p to byRule. It returns how many records it read.
func (s *Redis) CountThrottled(ctx context.Context, p int, byRule map[string]int64) (read int, err error) {
	for r, err := range s.levelRecords(ctx, p) {
		if err != nil {
			return read, err
		}
		read++
		if t, ok := parseThrottle(r.field, r.text); ok {
			byRule[t.Rule]++
		}
	}
	return read, nil
}

// levelRecord is one field of a partition's hash of levels.
type levelRecord struct{ field, text string }

// levelRecords returns the fields of a partition's hash of levels. A field may come twice if it changes meanwhile. If
// the key of the hash has another type, there are no records, because the levels are lost.
func (s *Redis) levelRecords(ctx context.Context, p int) iter.Seq2[levelRecord, error] {
	return func(yield func(levelRecord, error) bool) {
		it := s.redis.HScan(ctx, s.keys.Levels(p), 0, "", 500).Iterator()
		for it.Next(ctx) {
			field := it.Val()
			if !it.Next(ctx) {
				break
			}
			if !yield(levelRecord{field, it.Val()}, nil) {
				return
			}
		}
		switch err := it.Err(); {
		case redisclient.IsWrongType(err):
			if s.unlisted != nil {
				s.unlisted(s.keys.Levels(p))
			}
		case err != nil:
			yield(levelRecord{}, fmt.Errorf("listing %s: %w", s.keys.Levels(p), err))
		}
	}
}

package counters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Overview reads all records of levels once. Each list has at most n entries; Near has up to n of each kind.
func (s *Redis) Overview(ctx context.Context, rules *windows.Rules, n int) (api.Overview, error) {
	out := api.Overview{ByRule: map[string]int64{}}
	pager, err := newThrottledPager(n, "")
	if err != nil {
		return out, err
	}
	enforced, shadow := firstN[nearKey]{n: n, compare: nearKey.compare}, firstN[nearKey]{n: n, compare: nearKey.compare}
	reserved := firstN[api.ReservedKey]{n: n, compare: func(a, b api.ReservedKey) int {
		return cmp.Or(cmp.Compare(b.Units, a.Units), strings.Compare(a.Key, b.Key))
	}}
	for p := range s.keys.Partitions {
		for r, err := range s.levelRecords(ctx, p) {
			if err != nil {
				return out, err
			}
			if t, ok := parseThrottle(r.field, r.text); ok {
				if s.fillBlock(rules, &t) {
					out.ByRule[t.Rule]++
					if !t.Shadow {
						pager.add(t)
					}
				}
			} else if t, ok := parseNear(r.field, r.text); ok && t.Shadow {
				out.NearShadow++
				shadow.add(t)
			} else if ok {
				out.NearEnforced++
				enforced.add(t)
			} else if one, ok := parseReserved(r.field, r.text); ok {
				out.ReservedKeys++
				reserved.add(one)
			}
		}
	}
	out.Throttled, out.Next = pager.page()
	out.Reserved = reserved.sorted()
	for _, t := range slices.Concat(enforced.sorted(), shadow.sorted()) {
		out.Near = append(out.Near, t.Throttled)
	}
	if err := errors.Join(s.fillUsed(ctx, rules, out.Throttled), s.fillUsed(ctx, rules, out.Near)); err != nil {
		return out, err
	}
	slices.SortStableFunc(out.Near, func(a, b api.Throttled) int {
		return cmp.Compare(float64(b.Used)/float64(b.Limit), float64(a.Used)/float64(a.Limit))
	})
	return out, s.fillReserved(ctx, rules, out.Reserved)
}

// nearKey is a key that has reached an alert level.
type nearKey struct {
	api.Throttled
	level int64
}

// compare puts the highest level first.
func (k nearKey) compare(other nearKey) int {
	return cmp.Or(cmp.Compare(other.level, k.level), strings.Compare(k.Key, other.Key),
		strings.Compare(k.Rule, other.Rule))
}

// parseNear reads the highest alert level of a record that has no throttle decision (lua/records.lua has the form). It
// returns false if the record is another.
func parseNear(field, record string) (nearKey, bool) {
	head, body, ok := strings.Cut(record, "|")
	if !ok || strings.Contains(body, "!") {
		return nearKey{}, false
	}
	rule, _, _ := strings.Cut(head, ";")
	key, _, shadow := strings.Cut(field, "\n")
	out := nearKey{Throttled: api.Throttled{Key: key, Rule: rule, Shadow: shadow}}
	for _, window := range strings.Split(body, "|") {
		w := strings.Split(window, ",")
		if len(w) != 5 {
			return out, false
		}
		top := w[4][strings.LastIndex(w[4], "+")+1:]
		level, since, _ := strings.Cut(top, "@")
		if n := atoi(level); n > out.level {
			out.level, out.SinceMs = n, atoi(since)
			out.WindowMs, out.Limit, out.UntilMs = atoi(w[0]), atoi(w[1]), atoi(w[2])
		}
	}
	return out, key != "" && out.Limit > 0
}

// parseReserved reads what is reserved of a key (lua/features/reserved.lua has the form). It returns false if the
// record is another.
func parseReserved(field, record string) (api.ReservedKey, bool) {
	key, ok := strings.CutPrefix(field, "\n\n")
	r := strings.Split(record, ";")
	if !ok || len(r) != 4 {
		return api.ReservedKey{}, false
	}
	out := api.ReservedKey{Key: key, Units: atoi(r[0]), FirstMs: atoi(r[1]), LastMs: atoi(r[2])}
	return out, out.Units > 0
}

// fillReserved sets the rule and the number of reservations of each key.
func (s *Redis) fillReserved(ctx context.Context, rules *windows.Rules, list []api.ReservedKey) error {
	if len(list) == 0 {
		return nil
	}
	pipe := s.redis.Pipeline()
	counts := make([]*redis.IntCmd, len(list))
	for i := range list {
		one := &list[i]
		counts[i] = pipe.ZCard(ctx, s.keys.Holds(s.keys.Partition(one.Key), one.Key))
		plan, _ := rules.Apply(rules.Match(one.Key), one.Key)
		if plan == nil || plan.Live == nil {
			continue
		}
		one.Rule = plan.Live.Name
		for _, w := range plan.Live.Windows {
			if w.InFlight {
				one.InFlight = w.Limit
			}
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("counting reservations: %w", err)
	}
	for i := range list {
		list[i].Reservations = counts[i].Val()
	}
	return nil
}

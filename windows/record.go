package windows

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/lua"
)

// In sc:meta the field `rules` is what rules are in use and since when, and exactField with the
// name of an exact algorithm is there once rules have had it: where that is one alone, there is
// nothing to carry.
const (
	rulesField = "rules"
	exactField = "exact:"
)

// RecordRules compares the rules with those that counted here last, and notes since
// when they are what they are. Call it at the start and after each reload.
func (s *Redis) RecordRules(ctx context.Context, rules *Rules) error {
	h, logs := sha256.New(), []any{}
	for _, r := range rules.List() {
		fmt.Fprintf(h, "%q %s %d %t\n", r.Match, strings.Join(r.Algorithms(), "+"), r.Longest().Milliseconds(),
			r.Shadow)
		for _, a := range r.Algorithms() {
			if lua.IsExact(a) {
				logs = append(logs, exactField+a, 1)
			}
		}
	}
	now := time.Now().UnixMilli()
	print := hex.EncodeToString(h.Sum(nil)[:8])
	if len(logs) > 0 {
		if err := s.redis.HSet(ctx, s.keys.Meta(), logs...).Err(); err != nil {
			return fmt.Errorf("noting what algorithms are in use: %w", err)
		}
	}
	known, err := s.redis.HGetAll(ctx, s.keys.Meta()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("reading what rules were in use: %w", err)
	}
	before, since, _ := strings.Cut(known[rulesField], "@")
	switch before {
	case print:
		s.setChanged(min(now, atoi(since)), rules, known)
		return nil
	case "": // nothing was ever counted here
		now = 0
	}
	s.setChanged(now, rules, known)
	if err := s.redis.HSet(ctx, s.keys.Meta(), rulesField, fmt.Sprintf("%s@%d", print, now)).Err(); err != nil {
		return fmt.Errorf("noting what rules are in use: %w", err)
	}
	return nil
}

func (s *Redis) setChanged(ms int64, rules *Rules, meta map[string]string) {
	var span time.Duration
	for _, r := range rules.List() {
		span = max(span, r.Longest())
	}
	logs := []string{}
	for _, a := range lua.Exact() {
		if meta[exactField+a] != "" {
			logs = append(logs, a)
		}
	}
	s.logs.Store(&logs)
	s.changed.Store(ms)
	s.carryUntil.Store(ms + carryMs(span.Milliseconds()))
	s.moved.forget()
	recorded := &recordedRules{now: rules}
	if last := s.rules.Load(); last != nil && last.now != rules {
		recorded.before = last.now
	}
	s.rules.Store(recorded)
}

// noticeRules looks whether calls come under rules that were not recorded: those of a reload are in
// force before they are recorded, and Redis may be away then. Until that is done they are taken for new.
func (s *Redis) noticeRules(calls [][]Request) {
	for _, call := range calls {
		for _, a := range call {
			s.noticePlan(a.Plan)
		}
	}
}

func (s *Redis) noticePlan(plan *Plan) {
	recorded := s.rules.Load()
	if plan != nil && plan.written != nil { // an override made it of that one
		plan = plan.written
	}
	if plan == nil || recorded == nil {
		return
	}
	rule := plan.rules[0]
	if !rule.Unlevelled && !recorded.has(rule) {
		s.takeForNew(rule.Longest())
	}
}

func (s *Redis) noticeAll(rules *Rules) {
	if recorded := s.rules.Load(); recorded != nil && !recorded.has(rules.list[0]) {
		for _, r := range rules.list {
			s.takeForNew(r.Longest())
		}
	}
}

func (s *Redis) takeForNew(longest time.Duration) {
	now := time.Now().UnixMilli()
	s.logs.Store(nil)
	s.changed.Store(now)
	s.carryUntil.Store(max(s.carryUntil.Load(), now+carryMs(longest.Milliseconds())))
}

// recordedRules are the rules recorded last, and those before, under which calls may still be
// under way.
type recordedRules struct{ now, before *Rules }

func (r *recordedRules) has(rule *Rule) bool {
	return r.now.named[rule.Name] == rule || r.before != nil && r.before.named[rule.Name] == rule
}

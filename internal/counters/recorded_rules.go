package counters

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
	"github.com/streamcounter/streamcounter/windows"
)

// rulesField of sc:meta has the fingerprint of the rules in use, and since when they are in use.
const rulesField = "rules"

// RecordRules compares the rules with the rules that counted here last, and records since
// when they are unchanged. Call it at the start and after each reload.
func (s *Redis) RecordRules(ctx context.Context, rules *windows.Rules) error {
	var plans []*lua.Plan
	h := sha256.New()
	for _, r := range rules.List() {
		plans = append(plans, s.luaPlan(windows.PlanOf(r)))
		fmt.Fprintf(h, "%q %s %d %t\n", r.Match, strings.Join(r.Algorithms(), "+"), r.Longest().Milliseconds(),
			r.Shadow)
	}
	s.lua.Prepare(ctx, plans)
	now := time.Now().UnixMilli()
	fingerprint := hex.EncodeToString(h.Sum(nil)[:8])
	known, err := s.redis.HGet(ctx, s.keys.Meta(), rulesField).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("reading what rules were in use: %w", err)
	}
	before, since, _ := strings.Cut(known, "@")
	switch {
	case before == fingerprint:
		s.setChanged(min(now, atoi(since)), rules)
		return nil
	case known == "" && s.rules.Load() == nil: // nothing was ever counted here
		now = 0
	}
	s.setChanged(now, rules)
	if err := s.redis.HSet(ctx, s.keys.Meta(), rulesField, fmt.Sprintf("%s@%d", fingerprint, now)).Err(); err != nil {
		return fmt.Errorf("recording what rules are in use: %w", err)
	}
	return nil
}

func (s *Redis) setChanged(ms int64, rules *windows.Rules) {
	s.changed.Store(ms)
	recorded := &recordedRules{now: rules}
	if last := s.rules.Load(); last != nil && last.now != rules {
		recorded.before = last.now
	}
	s.rules.Store(recorded)
}

// noticePlan checks whether a plan is of rules that are not recorded. The rules of a reload take effect
// before they are recorded, and Redis may not answer then. Until they are recorded, they count as just changed.
func (s *Redis) noticePlan(plan *windows.Plan) {
	recorded := s.rules.Load()
	plan = plan.AsWritten()
	if plan == nil || recorded == nil {
		return
	}
	if rule := plan.Rules()[0]; !rule.Unlevelled && !recorded.has(rule) {
		s.changed.Store(time.Now().UnixMilli())
	}
}

func (s *Redis) noticeAll(rules *windows.Rules) {
	if recorded := s.rules.Load(); recorded != nil && !recorded.has(rules.List()[0]) {
		s.changed.Store(time.Now().UnixMilli())
	}
}

// recordedRules are the rules that were recorded last, and the rules before them, because calls under
// those may still run.
type recordedRules struct{ now, before *windows.Rules }

func (r *recordedRules) has(rule *windows.Rule) bool {
	return r.now.Named(rule.Name) == rule || r.before != nil && r.before.Named(rule.Name) == rule
}

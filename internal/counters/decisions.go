package counters

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Decision is a throttle decision that is in force, as it is in Redis and as it was published.
type Decision struct {
	// Field is the field of its record, an argument of Sweep and Restate. Record is the record's text.
	Field, Record string
	Rule, Key     string
	WindowMs      int64 // of the window that determines the decision
	Limit         int64
	SinceMs       int64
	UntilMs       int64
}

// Decisions returns the throttle decisions in these fields of partition p (from Levelled). Fields
// without a decision are left out.
func (s *Redis) Decisions(ctx context.Context, p int, fields []string) ([]Decision, error) {
	pipe := s.redis.Pipeline()
	records := make([]*redis.StringCmd, len(fields))
	for i, field := range fields {
		records[i] = pipe.HGet(ctx, s.keys.Levels(p), field)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("reading %s: %w", s.keys.Levels(p), err)
	}
	var out []Decision
	for i, record := range records {
		if d, ok := decisionOf(fields[i], record.Val()); ok {
			out = append(out, d)
		}
	}
	return out, nil
}

// decisionOf reads the decision in a record; lua/records.lua has its form.
func decisionOf(field, record string) (Decision, bool) {
	_, said, ok := strings.Cut(record, "!")
	rule, _, _ := strings.Cut(record, ";")
	key, _, _ := strings.Cut(field, "\n")
	d := Decision{Field: field, Record: record, Rule: rule, Key: key}
	numbers := strings.Split(said, ",")
	for i, to := range []*int64{&d.WindowMs, &d.Limit, &d.SinceMs, &d.UntilMs} {
		if !ok || i >= len(numbers) {
			return d, false
		}
		n, err := strconv.ParseInt(numbers[i], 10, 64)
		if err != nil {
			return d, false
		}
		*to = n
	}
	return d, true
}

// endsAlone is the end of the field for a decision that is released although its key has another record. No rule has
// such a name, so a sweep ends the decision as one of a rule that was removed.
const endsAlone = "\nlost decision"

// Release ends a published decision whose record Redis has lost. It writes the record again, and sweeps it. If the key
// has a record without this decision (of a lower level, or of another rule), that record stays, and the decision ends.
// Release returns how many transitions it wrote.
func (s *Redis) Release(ctx context.Context, p int, rules *windows.Rules, d *api.Transition) (int64, error) {
	// A greater version would count on in all later versions of the key.
	if now := s.clockMs(time.Now().UnixMilli()); max(d.Version, d.SinceMs) > now+(24*time.Hour).Milliseconds() {
		return 0, fmt.Errorf("the decision on %s has the version %d and begins at %d: another program published it",
			api.ThrottleSubject(s.keys.Prefix, d.Rule, d.Key), d.Version, d.SinceMs)
	}
	field, shadow := d.Key, 0
	if d.Shadow {
		shadow = 1
	}
	if d.Shadow || d.IsBlock() {
		field += "\n" + d.Rule
	}
	record := fmt.Sprintf("%s;lost;%d!%d,%d,%d,%d,0,%d", d.Rule, d.Version, d.WindowMs, d.Limit, d.SinceMs, d.UntilMs,
		shadow)
	written, err := s.writeLost(ctx, p, field, record)
	if err == nil && !written && !d.IsBlock() {
		have, ok := decisionOf(field, s.redis.HGet(ctx, s.keys.Levels(p), field).Val())
		if ok && have.Rule == d.Rule {
			return 0, nil // it was decided again meanwhile
		}
		field = d.Key + endsAlone
		written, err = s.writeLost(ctx, p, field, record)
	}
	if err != nil || !written {
		return 0, err
	}
	transitions, _, err := s.Sweep(ctx, p, rules, []string{field})
	return transitions, err
}

// writeLost writes a record if its field has none. If this process dies before it sweeps the record, another one does.
func (s *Redis) writeLost(ctx context.Context, p int, field, record string) (written bool, err error) {
	if err := s.Postpone(ctx, p, []string{field}, time.Second); err != nil {
		return false, err
	}
	return s.redis.HSetNX(ctx, s.keys.Levels(p), field, record).Result()
}

// Restate publishes the throttle decisions of these records of partition p again, as renewals, if
// they are still in force. It returns how many transitions it wrote.
func (s *Redis) Restate(ctx context.Context, p int, rules *windows.Rules, fields []string) (transitions int64,
	err error) {
	if len(fields) == 0 {
		return 0, nil
	}
	transitions, _, err = s.sweep(ctx, p, rules, fields, true)
	return transitions, err
}

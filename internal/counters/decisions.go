package counters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Decision is a throttle decision that is in force, as it is in Redis and as it was published.
type Decision struct {
	// Field is the field of its record, an argument of Sweep and Restate. Record is the record's text.
	Field, Record string
	api.Throttled
	HoldMs  int64 // a subscriber keeps it for longer than this after UntilMs, if it receives nothing newer
	Version int64 // of the key's last transition
	// Published is the version of the decision that subscribers find instead; 0: they find none.
	Published int64
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
		if t, ok := parseThrottle(fields[i], record.Val()); ok {
			out = append(out, Decision{fields[i], record.Val(), t, holdIn(record.Val()), versionIn(record.Val()), 0})
		}
	}
	return out, nil
}

// lostSuffix ends the field of a lost decision if its key has another record. The suffix takes the place of a rule's
// name, and no rule has such a name. So a sweep ends the decision like one of a rule that was removed.
const lostSuffix = "\nlost decision"

// Release ends a published decision whose record Redis has lost. It writes the record again, and sweeps it. If the key
// has a record without this decision (of a lower level, or of another rule), that record stays, and the decision ends.
// Release returns how many transitions it wrote.
func (s *Redis) Release(ctx context.Context, p int, rules *windows.Rules, d *api.Transition) (int64, error) {
	version, impossible := s.versionOf(d.Rule, d.Key, d.Version)
	n, err := s.release(ctx, p, rules, d, version)
	return n, cmp.Or(err, impossible)
}

// versionOf returns the version of a published decision; the next one is published with a higher version. It returns 0
// and an error for a version that streamcounter cannot have published, because all later versions would be above it.
func (s *Redis) versionOf(rule, key string, version int64) (int64, error) {
	if version <= s.clockMs(time.Now().UnixMilli())+(24*time.Hour).Milliseconds() {
		return version, nil
	}
	return 0, fmt.Errorf("the decision on %s had the version %d: another program published it, and its subscribers "+
		"ignore the key until they start again", api.ThrottleSubject(s.keys.Prefix, rule, key), version)
}

func (s *Redis) release(ctx context.Context, p int, rules *windows.Rules, d *api.Transition, version int64) (int64,
	error) {
	field, shadow := d.Key, 0
	if d.Shadow {
		shadow = 1
	}
	if d.Shadow || d.IsBlock() {
		field += "\n" + d.Rule
	}
	now := s.clockMs(time.Now().UnixMilli()) // a record with greater numbers than these counts as corrupt
	record := fmt.Sprintf("%s;lost;%d!%d,%d,%d,%d,0,%d", d.Rule, version, min(d.WindowMs, 1<<36),
		min(d.Limit, 1<<53-1), min(d.SinceMs, now), min(d.UntilMs, now), shadow)
	written, err := s.writeLost(ctx, p, field, record)
	if err == nil && !written && !d.IsBlock() {
		have, ok := parseThrottle(field, s.redis.HGet(ctx, s.keys.Levels(p), field).Val())
		if ok && have.Rule == d.Rule {
			return 0, nil // the key was throttled again meanwhile
		}
		field = d.Key + lostSuffix
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

// Restate publishes these throttle decisions of partition p again, as renewals with versions above those that were
// published, if they are still in force. It returns how many transitions it wrote.
func (s *Redis) Restate(ctx context.Context, p int, rules *windows.Rules, wrong []Decision) (transitions int64,
	err error) {
	fields, above, impossible := make([]string, len(wrong)), int64(1), error(nil)
	for i, d := range wrong {
		version, err := s.versionOf(d.Rule, d.Key, d.Published)
		fields[i], above, impossible = d.Field, max(above, version), cmp.Or(impossible, err)
	}
	transitions, _, err = s.sweep(ctx, p, rules, fields, above)
	return transitions, cmp.Or(err, impossible)
}

package windows_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

const packed = "sliding-log-packed"

// TestLargePackedLogs is TestCounterEqualsRecount over logs of hundreds of records, where one
// read does not bring all of them: they grow, turn round, shrink and end.
func TestLargePackedLogs(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		run, large := 0, 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			l := newTimeline(rt, s, packed, fmt.Sprintf("user:%d-", run))
			rule := &windows.Rule{Name: "r", Match: "*", Algorithm: packed, Alerts: []int{80}, Hold: time.Second}
			l.limits, l.span = nil, 0
			for _, w := range rapid.SliceOfNDistinct(rapid.Int64Range(40, 6000), 1, 3, rapid.ID).Draw(rt, "windows") {
				limit := rapid.SampledFrom([]int64{30, 300, 3000}).Draw(rt, "limit")
				rule.Windows = append(rule.Windows, windows.Window{Limit: limit, Per: ms(w)})
				l.limits = append(l.limits, streamtest.OracleWindow{Ms: w, Limit: limit})
				l.span = max(l.span, w)
			}
			s.rules = rulesOf(rt, rule)
			l.rule, l.plan, l.largest = s.rules.List()[0], planOf(s.rules), 10
			for range rapid.IntRange(1, 4).Draw(rt, "bursts") {
				l.burst()
				if s.redis.StrLen(t.Context(), l.counter(0)).Val() > 300 {
					large++
				}
				l.run()
			}
		})
		if large < run/4 {
			t.Errorf("%d runs met %d large logs", run, large)
		}
	})
}

func (l *timeline) counter(key int) string {
	name := l.keys[key]
	return l.s.keys.Counter(l.s.keys.Partition(name), lua.Form(l.rule.Algorithm), name)
}

// burst folds events of the first key, some ms apart, in batches.
func (l *timeline) burst() {
	n := rapid.IntRange(1, 600).Draw(l.T, "burst")
	apart := rapid.Int64Range(1, 6).Draw(l.T, "apart")
	batch := rapid.IntRange(1, 200).Draw(l.T, "batch")
	if apart <= l.rule.Resolution().Milliseconds() {
		apart = l.rule.Resolution().Milliseconds() + 1
	}
	for n > 0 {
		var events []windows.Event
		for ; n > 0 && len(events) < batch; n-- {
			l.s.clock.ms += apart
			events = append(events, windows.Event{Key: l.keys[0], Ms: l.s.clock.ms, Count: 1 + int64(n)%3})
		}
		l.appended = l.s.clock.ms
		l.s.fold(l, l.plan, events...)
		for _, e := range events {
			if e.Ms > l.s.clock.ms-l.span {
				l.oracle.Add(l.keys[0], e.Ms, e.Count)
			}
		}
	}
}

// TestPackedTimesTurnRound is TestCounterEqualsRecount across 2^41 ms, in the year 2039, where
// what a record keeps of its time begins at zero again.
func TestPackedTimesTurnRound(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			l := newTimeline(rt, s, packed, fmt.Sprintf("user:%d-", run))
			for p := range s.keys.Partitions { // the clock steps back between runs
				s.redis.Del(t.Context(), s.keys.Events(p))
			}
			s.clock.ms = 1<<41 - rapid.Int64Range(0, 2*l.span).Draw(rt, "before")
			l.run()
		})
	})
}

// packedNumber is a number of so many bytes, as packed.lua has them.
func packedNumber(x int64, bytes int) string {
	var b []byte
	for i := bytes - 1; i >= 0; i-- {
		b = append(b, byte(x>>(8*i)))
	}
	return string(b)
}

// packedRecord is a record of packed.lua.
func packedRecord(total, at int64) string { return packedNumber(total, 6) + packedNumber(at, 5) }

// packedHead begins a log, small ("p") or large ("P").
func packedHead(tag string, at, total int64) string {
	return tag + packedNumber(at, 6) + packedNumber(total, 6)
}

const noRecord = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"

// hostilePacked has strings that look like packed logs and are none, and such ("between")
// whose newest record reads well while others do not.
func hostilePacked(now int64) map[string]string {
	small, large := packedHead("p", now-10, 0), packedHead("P", now-10, 0)
	ring := func(size, head, n int64) string {
		return large + packedNumber(size, 4) + packedNumber(head, 4) + packedNumber(n, 4) + strings.Repeat("\x00", 16) +
			packedRecord(200, now) + strings.Repeat(noRecord, 15)
	}
	return map[string]string{
		"a head alone":                  small,
		"half a record":                 small + packedRecord(1, now)[:5],
		"a record and a half":           small + packedRecord(1, now) + packedRecord(2, now)[:6],
		"no record":                     small + strings.Repeat(noRecord, 4),
		"another tag":                   packedHead("x", now, 0) + packedRecord(1, now),
		"a record of tomorrow's morrow": small + packedRecord(1, now+2*86_400_000),
		"a time before all records":     packedHead("p", 1<<47, 0) + packedRecord(1, now),
		"a total below its base":        packedHead("p", now-10, 5) + packedRecord(4, now),
		"a large head alone":            large,
		"a ring of no multiple":         ring(65, 1, 63),
		"a ring that begins behind":     ring(64, 64, 0),
		"a ring of more than it has":    ring(64, 0, 128),
		"a ring that ends askew":        ring(64, 3, 60),
		"a ring of 2^32":                ring(1<<32-64, 0, 64),
		"a buffer cut short":            ring(64, 0, 64)[:200],
		"an empty buffer": large + packedNumber(64, 4) + packedNumber(0, 4) + packedNumber(64, 4) +
			strings.Repeat("\xff", 16+16*11),
		"between: a ring that is not there":  ring(128, 0, 128),
		"between: half a ring":               ring(128, 0, 128) + strings.Repeat(packedRecord(100, now-5), 64),
		"between: a ring of no records":      ring(128, 0, 128) + strings.Repeat(noRecord, 128),
		"between: a ring of zeros":           ring(128, 0, 128) + strings.Repeat("\x00", 128*11),
		"between: a ring of what is to come": ring(128, 0, 128) + strings.Repeat(packedRecord(1<<40, now+1000), 128),
		"between: a total above the newest":  small + packedRecord(1<<40, now-10) + packedRecord(2, now),
		"between: a time after the newest":   small + packedRecord(1, now+1000) + packedRecord(2, now),
		"between: times that fall": small + packedRecord(1, now-1) + packedRecord(2, now-5) +
			packedRecord(3, now-3),
		"between: a place among records": small + packedRecord(1, now-1) + noRecord + packedRecord(3, now),
		"between: zeros behind the newest": small + packedRecord(1, now-1) + packedRecord(2, now) +
			strings.Repeat("\x00", 33),
		"between: the greatest total":       small + packedRecord(1<<46, now),
		"between: more than any string has": small + strings.Repeat(packedRecord(2, now), 300),
	}
}

// What comes in one millisecond is one record, however it comes.
func TestPackedLogHasOneRecordPerMillisecond(t *testing.T) {
	eachRedis(t, nil, func(t *testing.T, s *store) {
		x := one(t, s, packed, 100_000, time.Hour)
		for i := range 60 {
			s.serve.LeaveToGeneral(i%2 == 0)
			x.check("k", 1)
			s.fold(t, nil, windows.Event{Key: "k", Ms: start, Count: 2})
		}
		if n, size := used(t, s, "k"), s.redis.StrLen(t.Context(), x.counter("k")).Val(); n != 180 || size > 40 {
			t.Errorf("used %d in %d B, expected 180 in one record", n, size)
		}
	})
}

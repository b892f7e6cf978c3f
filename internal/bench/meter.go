package bench

import (
	"context"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

// meter measures one part.
type meter struct {
	cfg    *Config
	redis  redis.UniversalClient
	part   *part
	choose chooser

	n      int // operations of a slice, as the warm-up found them to fit
	rounds []round
}

// round is one slice of each contestant, over the same picks; the product first.
type round []*tally

func (m *meter) open() bool {
	return m.cfg.Rate > 0 && (m.part.operation == Check || m.part.operation == Peek)
}

func (m *meter) loop() loop {
	if m.open() {
		return func(ctx context.Context, calls int, do func(context.Context, int) (result, error)) *tally {
			return openLoop(ctx, realClock, m.cfg.Rate, maxInFlight, calls, do)
		}
	}
	return func(ctx context.Context, calls int, do func(context.Context, int) (result, error)) *tally {
		return closedLoop(ctx, realClock, m.cfg.Connections, calls, do)
	}
}

func (m *meter) warmUp(ctx context.Context) error {
	if m.cfg.Warmup < 0 {
		return nil
	}
	p := byTime(m.cfg.Warmup, m.part.least, 0)
	if m.open() {
		p = byCount(m.inTime(m.cfg.Warmup), 1)
	}
	err := m.turns(ctx, p, func(round) {})
	m.n = p.n
	return err
}

// inTime is how many operations an open loop has in d.
func (m *meter) inTime(d time.Duration) int { return max(1, int(math.Ceil(m.cfg.Rate*d.Seconds()))) }

func (m *meter) measure(ctx context.Context) error {
	var p *pace
	switch {
	case m.open() && m.cfg.Count == 0:
		p = byCount(m.inTime(m.cfg.Duration), 1)
	case m.cfg.Count > 0:
		p = byCount(m.cfg.Count, min(m.part.least, m.cfg.Count))
	default:
		p = byTime(m.cfg.Duration, m.part.least, m.n)
	}
	return m.turns(ctx, p, func(r round) {
		m.rounds = append(m.rounds, r)
		m.part.progress(m.part.String(), p.fraction())
	})
}

// turns runs rounds until it is enough. A round that is cut off counts for
// nothing, so that all contestants have done the same.
func (m *meter) turns(ctx context.Context, p *pace, done func(round)) error {
	who := append([]contestant{m.part.product}, m.part.yardsticks...)
	for n, turn := p.next(), 0; n > 0; n, turn = p.next(), turn+1 {
		picks := m.choose.draw(n)
		r := make(round, len(who))
		for i := range who {
			// Each begins in its turn: whoever comes first may find a colder server.
			j := (i + turn) % len(who)
			t, err := runSlice(ctx, m.redis, m.loop(), &who[j], picks)
			if err != nil {
				return err
			}
			r[j] = t
		}
		p.took(n, r[0].wall)
		done(r)
	}
	return nil
}

func (m *meter) report() *Part {
	if len(m.rounds) == 0 {
		return nil
	}
	if m.open() {
		return partOf(m.part, m.rounds, m.cfg.Rate)
	}
	return partOf(m.part, m.rounds, 0)
}

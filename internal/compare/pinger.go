package compare

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
)

// turnPings are sent in each turn.
const turnPings = 50

// pinger takes turns with the contestants and learns what a round trip costs
// the server by itself. On a nil one nothing is learnt.
type pinger struct {
	client redis.UniversalClient
	cpu    time.Duration
	sent   int
}

func newPinger(ctx context.Context, c redis.UniversalClient) (*pinger, error) {
	told, err := tells(ctx, c, measure.CPU)
	if err != nil || !told {
		return nil, err
	}
	return &pinger{client: c}, nil
}

func (p *pinger) turn(ctx context.Context) error {
	if p == nil {
		return nil
	}
	before, err := measure.CPU(ctx, p.client)
	if err != nil {
		return err
	}
	for range turnPings {
		if err := p.client.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("PING: %w", err)
		}
	}
	after, err := measure.CPU(ctx, p.client)
	p.cpu += after - before
	p.sent += turnPings
	return err
}

// mean is in µs of the server's CPU per PING; nil where the server does not tell.
func (p *pinger) mean() *float64 {
	if p == nil || p.sent == 0 {
		return nil
	}
	return rounded(micros(p.cpu)/float64(p.sent), 2)
}

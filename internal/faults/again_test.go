package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// askAgain checks under idempotency keys, gives up on many answers before they can
// have come, and asks again until there is one: each check is charged once.
func (d *driver) askAgain(ctx context.Context, random *rand.Rand) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for pace(ctx, time.Duration(10+random.IntN(20))*time.Millisecond) {
		key, cost, name := fmt.Sprintf("i:%d", random.IntN(3)), 1+random.Int64N(5), fmt.Sprintf("%x", random.Uint64())
		ask := func(within time.Duration) outcome {
			short, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			a, err := d.checkOne(short, client, key, cost, name)
			if err != nil {
				return nobodyKnows
			}
			return outcomeOf(a)
		}
		if random.IntN(2) == 0 {
			_ = ask(time.Duration(random.IntN(5000)) * time.Microsecond) // its answer is lost
		}
		was := ask(time.Second)
		for was == nobodyKnows && pace(ctx, 50*time.Millisecond) {
			was = ask(time.Second)
		}
		switch was {
		case nobodyKnows:
			d.charged(key, 0, cost)
			continue
		case granted:
			d.charged(key, cost, cost)
		}
		d.again.Add(1)
		if now := ask(time.Second); now != nobodyKnows && now != was {
			d.record.ledger.fail(key, "%s: idempotency key %s was answered %d and then %d", name, was, now)
		}
	}
}

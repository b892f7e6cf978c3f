package bench

import (
	"context"

	"github.com/streamcounter/streamcounter/windows"
)

// check asks for one unit of one key at a time.
func (r *room) check() contestant {
	asks := make([]windows.Request, len(r.names)) // rank → the ask
	for i, name := range r.names {
		asks[i] = windows.Request{Plan: r.plan(), Key: name, Cost: 1}
	}
	return contestant{
		call: func(ctx context.Context, picks []int, i int) (result, error) {
			v, err := r.counter.Check(ctx, asks[picks[i]:picks[i]+1])
			if err != nil {
				return result{}, err
			}
			return outcome(v.Allowed), nil
		},
		tidy: func(ctx context.Context) error { return r.empty(ctx, r.keys.Outbox) },
	}
}

func (r *room) peek() contestant {
	plan := r.plan()
	return contestant{call: func(ctx context.Context, picks []int, i int) (result, error) {
		if _, err := r.counter.Peek(ctx, plan, r.names[picks[i]]); err != nil {
			return result{}, err
		}
		return result{ops: 1}, nil
	}}
}

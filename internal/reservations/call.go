package reservations

import (
	"context"
	"slices"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/windows"
)

// call has the keys of a reservation for an operation. All of them are on one server.
type call struct {
	store      *Store
	requests   []counters.Request
	partitions []int
	plans      []*lua.Plan // each once
	planOf     []*lua.Plan // per request; nil: no rule counts its key
	meters     []string
	items      []any
}

// callWith returns a call with the keys of requests. policy says what happens to the units of a key when the
// reservation expires, as in holds.lua.
func (s *Store) callWith(requests []counters.Request, policy func(counters.Request) string) *call {
	c := &call{store: s, requests: requests}
	for _, a := range requests {
		c.add(a, policy(a))
	}
	return c
}

// onExpiry is the policy of the rule that decides.
func onExpiry(a counters.Request) string {
	if a.Plan != nil && a.Plan.Live != nil && a.Plan.Live.OnExpire == windows.OnExpireFree {
		return "f" // they are free then
	}
	return "c" // they are charged
}

func (c *call) add(a counters.Request, policy string) {
	p := c.store.keys.Partition(a.Key)
	at := slices.Index(c.partitions, p)
	if at < 0 {
		at = len(c.partitions)
		c.partitions = append(c.partitions, p)
	}
	own, place := counters.Key{}, 0 // the place of its plan in plans, from 1
	if a.Plan != nil {
		own = c.store.counter.Key(a.Plan, a.Key)
		if place = 1 + slices.Index(c.plans, own.Plan); place == 0 {
			c.plans = append(c.plans, own.Plan)
			place = len(c.plans)
		}
	}
	c.planOf = append(c.planOf, own.Plan)
	c.meters = append(append(c.meters, c.store.keys.Holds(p, a.Key)), own.Meters...)
	c.items = append(c.items, at+1, a.Cost, policy, place)
}

// run runs an operation on the reservation with this id. head has the arguments that follow the id.
func (c *call) run(ctx context.Context, op, id string, head ...any) *lua.Reply {
	var keys []string
	for _, p := range c.partitions {
		k := c.store.keys
		keys = append(keys, k.Levels(p), k.Due(p), k.Outbox(p), k.Reservations(p))
	}
	args := append([]any{c.store.counter.Clock().Arg(), id}, head...)
	args = lua.AppendTexts(append(args, len(c.partitions), len(c.plans)), c.plans)
	return c.store.lua.Call(ctx, op, c.plans, append(keys, c.meters...), append(args, c.items...)...)
}

// states reads the state of each key from the rest of a reply; read reads the state of one key.
func (c *call) states(r *lua.Reply, read func(*lua.Reply, *lua.Plan) lua.KeyState) ([]windows.KeyState, error) {
	list := make([]lua.KeyState, len(c.planOf))
	for i, plan := range c.planOf {
		list[i] = read(r, plan)
	}
	if err := r.End(); err != nil {
		return nil, err
	}
	out := make([]windows.KeyState, len(list))
	for i, a := range c.requests {
		out[i] = a.Plan.State(list[i])
	}
	return out, nil
}

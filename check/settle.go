package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// Commit charges what a reservation really cost, even if that is more than was reserved, and frees the rest. It may
// be sent again with the same costs. If the reservation is not open, the error wraps api.ErrNoReservation,
// api.ErrReservationExpired or api.ErrReservationSettled.
func (s *Service) Commit(ctx context.Context, id string, req api.CommitRequest) (api.Settlement, error) {
	if req.Checks != nil && (req.Cost != nil || len(req.Checks) == 0) {
		return api.Settlement{}, fmt.Errorf(`%w: give either "cost" or "checks" of one key or more`, api.ErrBadRequest)
	}
	costs := map[string]int64{}
	for i, c := range req.Checks {
		if _, twice := costs[c.Key]; twice {
			return api.Settlement{}, fmt.Errorf("%w: checks[%d]: key %s is given twice", api.ErrBadRequest, i,
				api.Shorten(c.Key))
		}
		if c.Cost == nil {
			return api.Settlement{}, fmt.Errorf("%w: checks[%d] has no cost", api.ErrBadRequest, i)
		}
		if err := validateFinal(*c.Cost); err != nil {
			return api.Settlement{}, fmt.Errorf("checks[%d]: %w", i, err)
		}
		costs[c.Key] = *c.Cost
	}
	if req.Cost != nil {
		if err := validateFinal(*req.Cost); err != nil {
			return api.Settlement{}, err
		}
	}
	if len(req.Checks) > 0 {
		if err := s.areKeysOf(ctx, id, req.Checks); err != nil {
			return api.Settlement{}, err
		}
	}
	cost := func(key string, units int64) int64 {
		if c, ok := costs[key]; ok {
			return c
		}
		if req.Cost != nil {
			return *req.Cost
		}
		return units
	}
	return s.settle(ctx, id, reservations.Commit, 0, cost)
}

// validateFinal refuses a cost that a commit cannot charge. It may be 0.
func validateFinal(cost int64) error {
	if err := api.ValidateCount(cost); err != nil && cost != 0 {
		return fmt.Errorf("cost: %w, or 0", err)
	}
	return nil
}

// areKeysOf refuses costs of keys that a reservation does not have, before anything is charged.
func (s *Service) areKeysOf(ctx context.Context, id string, costs []api.CommitCost) error {
	var keys []string
	err := s.onShardsOf(ctx, id, func(within context.Context, parts []int) (bool, error) {
		some, err := s.held.Keys(within, id, parts)
		keys = append(keys, some...)
		return true, err
	})
	if err != nil || len(keys) == 0 { // settle reports an unknown id
		return err
	}
	for i, c := range costs {
		if !slices.Contains(keys, c.Key) {
			return fmt.Errorf("%w: checks[%d]: the reservation has no key %s", api.ErrBadRequest, i,
				api.Shorten(c.Key))
		}
	}
	return nil
}

// onShardsOf calls ask for each shard that has parts of a reservation, one after the other, until ask returns false
// or an error.
func (s *Service) onShardsOf(ctx context.Context, id string, ask func(within context.Context, parts []int) (bool,
	error),
) error {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	for _, parts := range s.held.Shards(id) {
		more := false
		err := s.onShard(ctx, within, s.config.Counter.ShardOf(parts[0]), func() (err error) {
			more, err = ask(within, parts)
			return err
		})
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// Cancel frees all units that a reservation holds; nothing is charged. Otherwise it is like Commit.
func (s *Service) Cancel(ctx context.Context, id string) (api.Settlement, error) {
	return s.settle(ctx, id, reservations.Cancel, 0, nil)
}

// Renew makes a reservation valid for ttl_ms from now; 0 means as long as before. Otherwise it is like Commit.
func (s *Service) Renew(ctx context.Context, id string, req api.RenewRequest) (api.Settlement, error) {
	if err := validateTTL(req.TTLMs, windows.MaxReservation, ""); err != nil && req.TTLMs != 0 {
		return api.Settlement{}, err
	}
	return s.settle(ctx, id, reservations.Renew, time.Duration(req.TTLMs)*time.Millisecond, nil)
}

func (s *Service) settle(ctx context.Context, id string, op reservations.SettleOp, ttl time.Duration,
	cost func(string, int64) int64,
) (out api.Settlement, err error) {
	began := time.Now()
	defer func() { s.observe(ctx, began, nil, true, err) }()
	rules := s.config.Rules()
	var got reservations.Settlement
	err = s.onShardsOf(ctx, id, func(within context.Context, parts []int) (bool, error) {
		one, err := s.held.Settle(within, rules, id, parts, op, ttl, cost)
		one.Keys = append(got.Keys, one.Keys...)
		got = one
		return got.State == reservations.Settled || got.State == reservations.DoneBefore, err
	})
	if err != nil {
		return api.Settlement{}, err
	}
	out = api.Settlement{ID: id, ExpiresMs: got.ExpiresMs, SettledMs: got.SettledMs, Keys: []api.KeyState{}}
	for _, k := range got.Keys {
		if op == reservations.Renew { // which frees nothing: the units stay for longer
			s.denials.charged(k.Key, s.denials.now())
		} else {
			s.changed(k.Key, freed)
		}
		if k.Plan != nil {
			out.Keys = append(out.Keys, k.State.KeyState(k.Plan, k.Key))
		}
	}
	switch got.State {
	case reservations.Unknown:
		return out, fmt.Errorf("%w: %s", api.ErrNoReservation, api.Shorten(id))
	case reservations.HasExpired:
		return out, fmt.Errorf("%w: %s, at %s", api.ErrReservationExpired, api.Shorten(id),
			time.UnixMilli(got.ExpiresMs).UTC().Format(time.RFC3339Nano))
	case reservations.WasCommitted, reservations.WasCancelled:
		was := "cancelled"
		if got.State == reservations.WasCommitted {
			was = "committed"
			if op == reservations.Commit {
				was = "committed with another cost"
			}
		}
		return out, fmt.Errorf("%w: %s was %s at %s", api.ErrReservationSettled, api.Shorten(id), was,
			time.UnixMilli(got.SettledMs).UTC().Format(time.RFC3339Nano))
	}
	out.State = map[reservations.SettleOp]api.ReservationState{reservations.Commit: api.ReservationCommitted,
		reservations.Cancel: api.ReservationCancelled, reservations.Renew: api.ReservationOpen}[op]
	return out, nil
}

package check

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/reservations"
	"github.com/streamcounter/streamcounter/windows"
)

// defaultTTL is how long a reservation is valid under a rule without in_flight windows, unless its request says
// otherwise.
const defaultTTL = time.Minute

// Reserve reserves the costs of one key or of several, all or none. The answer has an entry per check, and no id if
// it is denied. If the context is api.Repeatable, the same request may be sent again and reserves once. If Redis is
// away, the error wraps api.ErrUnavailable. on_error decides nothing then, because nothing else can hold the reserved
// units. The outcome is unknown unless the error wraps api.ErrNotSent too.
func (s *Service) Reserve(ctx context.Context, req api.ReservationRequest) (out api.ReservationOfAll, err error) {
	reqs := req.Checks
	if reqs == nil {
		reqs = []api.CheckRequest{req.CheckRequest}
	}
	var c *call
	began := time.Now()
	defer func() { s.observe(ctx, began, c, out.Allowed, err) }()
	if c, err = s.reservationCall(reqs); err != nil {
		return api.ReservationOfAll{}, err
	}
	ttl, err := ttlOf(c.byKey, req.TTLMs)
	if err != nil {
		return api.ReservationOfAll{}, err
	}
	if c.never { // an operator blocks one of the keys
		d := s.decide(ctx, c)
		return api.ReservationOfAll{ChecksAnswer: s.toAPI(c, d)}, d.err
	}
	prefix, fingerprint := reservationPrefix(ctx, reqs, req.TTLMs)
	id := s.held.ID(prefix, c.byKey)
	got, err := s.reserve(ctx, id, ttl, fingerprint, c.byKey)
	if err != nil {
		s.countFailed(ctx, c, err)
		return api.ReservationOfAll{}, err
	}
	switch got.State {
	case reservations.SettledBefore:
		return api.ReservationOfAll{}, fmt.Errorf("%w: reservation %s", api.ErrReservationSettled, id)
	case reservations.OtherRequest:
		return api.ReservationOfAll{}, errOtherReservation
	}
	d := decision{Verdict: got.Verdict, source: api.SourceRedis, outcome: "reserve_"}
	d.Replayed = got.State == reservations.AlreadyReserved
	d.skipped = make([]bool, len(got.Items))
	for i, state := range got.Items {
		d.skipped[i] = state.Windows == nil
	}
	out = api.ReservationOfAll{ChecksAnswer: s.toAPI(c, d)}
	if got.Allowed {
		out.Reserved = api.Reserved{ID: id, ExpiresMs: got.ExpiresMs, TTLMs: ttl.Milliseconds()}
	}
	return out, nil
}

// countFailed counts a reservation that Redis did not decide. For the caller it is like a check that on_error denied.
func (s *Service) countFailed(ctx context.Context, c *call, err error) {
	d := decision{outcome: "error_deny"}
	switch {
	case errors.Is(err, api.ErrBadRequest): // the request is wrong, and Redis works
		return
	case pause.Gone(ctx) != nil:
		d.outcome = "canceled"
	}
	for i := range c.requests {
		s.count(c, i, d)
	}
}

// reserve reserves in one shard after the other. If a shard denies, what was reserved in the shards before it is
// taken back, and only the keys of the shard that denies have a state. If a shard does not answer, reserve returns an
// error. The earlier shards' units stay reserved until they expire, or until a caller asks for the same id again.
func (s *Service) reserve(ctx context.Context, id string, ttl time.Duration, fingerprint string,
	requests []counters.Request,
) (reservations.Reservation, error) {
	within, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	parts := s.partsOf(requests)
	var all reservations.Reservation
	items := make([]windows.KeyState, len(requests))
	for n, p := range parts {
		var got reservations.Reservation
		err := s.onShard(ctx, within, p.shard, func() (err error) {
			got, err = s.held.Reserve(within, id, ttl, fingerprint, p.requests)
			return err
		})
		if err != nil && n > 0 {
			err = fmt.Errorf("%w: %w: %w", ErrPartlyCharged, api.ErrOutcomeUnknown, err)
		}
		if err != nil {
			return all, err
		}
		if !got.Allowed {
			clear(items)
		}
		for j, i := range p.at {
			items[i] = got.Items[j]
		}
		all.State, all.ExpiresMs, all.Allowed = got.State, got.ExpiresMs, got.Allowed
		if got.Allowed {
			for _, a := range p.requests {
				s.denials.charged(a.Key, s.denials.now())
			}
			continue
		}
		for _, before := range parts[:n] {
			err := s.onShard(ctx, within, before.shard, func() error {
				return s.held.Withdraw(within, id, before.requests)
			})
			if err != nil {
				return all, err
			}
		}
		break
	}
	all.Items, all.Atomic = items, len(parts) == 1
	return all, nil
}

// reservationCall is newCall for keys that all have a rule, which may have in-flight windows.
func (s *Service) reservationCall(reqs []api.CheckRequest) (*call, error) {
	rules := s.config.Rules()
	matched, err := requestsOf(rules, reqs)
	if err != nil {
		return nil, err
	}
	s.apply(rules, matched)
	for i := range matched {
		if matched[i].Plan == nil {
			return nil, fmt.Errorf("%w: key %s", api.ErrNoRule, api.Shorten(matched[i].Key))
		}
		if matched[i].Plan.HasValues() {
			return nil, fmt.Errorf("%w: key %s: a rule counts different values, and a reservation has none",
				api.ErrBadRequest, api.Shorten(matched[i].Key))
		}
		matched[i].reserves = true
	}
	return newCall(matched)
}

// ttlOf returns how long a reservation is valid.
func ttlOf(requests []counters.Request, ms int64) (time.Duration, error) {
	most, inFlight := windows.MaxReservation, ""
	for _, a := range requests {
		for _, r := range a.Plan.Rules() {
			if d := r.InFlight(); d > 0 && d < most {
				most, inFlight = d, fmt.Sprintf(", as the rule %q has in_flight: %s", r.Name, d)
			}
		}
	}
	switch {
	case ms == 0 && inFlight != "":
		return most, nil
	case ms == 0:
		return defaultTTL, nil
	}
	return time.Duration(ms) * time.Millisecond, validateTTL(ms, most, inFlight)
}

// MinTTL is the shortest time for which a reservation can be valid.
const MinTTL = windows.MinWindow

// validateTTL refuses a ttl_ms that is too short, or longer than most; why is the reason for that bound.
func validateTTL(ms int64, most time.Duration, why string) error {
	if ms < MinTTL.Milliseconds() || ms > most.Milliseconds() {
		return fmt.Errorf("%w: ttl_ms is %d, expected %d to %d%s", api.ErrBadRequest, ms,
			MinTTL.Milliseconds(), most.Milliseconds(), why)
	}
	return nil
}

// hash returns 128 bits of a SHA-256 of values, in hex.
func hash(values ...any) string {
	text, _ := json.Marshal(values) // strings, numbers and lists of them
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// onShard runs ask behind the breaker of a shard; `within` is ctx with the deadline.
func (s *Service) onShard(ctx, within context.Context, shard int, ask func() error) error {
	var refused error // of a request that is wrong: the server has answered
	err := s.shards[shard].execute(within, func() error {
		err := ask()
		if errors.Is(err, api.ErrBadRequest) {
			refused, err = err, nil
		}
		return err
	})
	switch {
	case refused != nil:
		return refused
	case err == nil:
		s.outage.redisAnswered()
		return nil
	case pause.Gone(ctx) != nil:
		return fmt.Errorf("reservation: %w: %w", pause.Gone(ctx), err)
	case errors.Is(err, api.ErrNotSent):
		return fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return unwritten(err)
}

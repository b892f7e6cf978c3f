package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Reserver is a Checker that takes reservations too. HTTP and direct.Redis are Reservers; grpc.Client is not, because
// Envoy's rate limit service has no call for it.
//
// A denied reservation is an answer (Allowed is false, ID is empty), not an error. The errors of Commit, Cancel and
// Renew wrap api.ErrNoReservation, api.ErrReservationExpired or api.ErrReservationSettled if the reservation is not
// open.
type Reserver interface {
	Checker
	// Reserve reserves the units of one key or of several, all or none. The idempotency key of
	// the context (api.WithIdempotency) makes it safe to send again.
	Reserve(ctx context.Context, req api.ReservationRequest) (api.ReservationOfAll, error)
	// Commit charges what the reservation really cost, and frees the rest. It is safe to send again.
	Commit(ctx context.Context, id string, req api.CommitRequest) (api.Settlement, error)
	// Cancel frees everything and charges nothing. It is safe to send again.
	Cancel(ctx context.Context, id string) (api.Settlement, error)
	// Renew makes the reservation valid for longer. It is safe to send again.
	Renew(ctx context.Context, id string, req api.RenewRequest) (api.Settlement, error)
}

// ErrCannotReserve means that the Checker of the Client is not a Reserver.
var ErrCannotReserve = errors.New("this transport takes no reservations: use client.HTTP or direct.Redis")

// Reserve implements Reserver. It carries an idempotency key, either that of the context or a new one. If its outcome
// is not known, it is sent again, so it reserves once. No policy grants a reservation: if nobody answers, the error
// wraps api.ErrUnavailable. It also wraps api.ErrOutcomeUnknown if something may be reserved; that ends with its ttl.
func (c *Client) Reserve(ctx context.Context, req api.ReservationRequest) (api.ReservationOfAll, error) {
	ctx = withKey(ctx, 0) // here a key costs the server nothing
	_, bad := transport.ValidateReservation(ctx, req)
	got, err := onReserver(ctx, c.shared, bad, func(ctx context.Context, r Reserver) (api.ReservationOfAll, error) {
		return r.Reserve(ctx, req)
	})
	for _, a := range got.Checks {
		c.denials.charged(api.ModeTake, a)
	}
	return got, err
}

// Commit implements Reserver. It is sent again if its outcome is not known.
func (c *Client) Commit(ctx context.Context, id string, req api.CommitRequest) (api.Settlement, error) {
	bad := validateID(id)
	got, err := onReserver(ctx, c.shared, bad, func(ctx context.Context, r Reserver) (api.Settlement, error) {
		return r.Commit(ctx, id, req)
	})
	for _, k := range got.Keys { // what it really cost may be above what was reserved
		c.denials.end(k.Key)
	}
	return got, err
}

// Cancel implements Reserver. It is sent again if its outcome is not known.
func (c *Client) Cancel(ctx context.Context, id string) (api.Settlement, error) {
	return onReserver(ctx, c.shared, validateID(id), func(ctx context.Context, r Reserver) (api.Settlement, error) {
		return r.Cancel(ctx, id)
	})
}

// Renew implements Reserver. It is sent again if its outcome is not known.
func (c *Client) Renew(ctx context.Context, id string, req api.RenewRequest) (api.Settlement, error) {
	return onReserver(ctx, c.shared, validateID(id), func(ctx context.Context, r Reserver) (api.Settlement, error) {
		return r.Renew(ctx, id, req)
	})
}

// onReserver calls within the deadline and behind the breaker, and again if nobody answered. bad is the error of a
// request that no server accepts: an open breaker acts before the transport validates.
func onReserver[T any](ctx context.Context, s *shared, bad error,
	call func(context.Context, Reserver) (T, error)) (answer T, err error) {
	r, ok := s.checker.(Reserver)
	if !ok {
		return answer, fmt.Errorf("client: %T: %w", s.checker, ErrCannotReserve)
	}
	if bad != nil {
		return answer, bad
	}
	answer, err = send(ctx, s, true, func(ctx context.Context) (T, error) { return call(ctx, r) })
	if err != nil && pause.Gone(ctx) == nil && unanswered(err) && !isRefusedCredentials(err) {
		err = fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	return answer, err
}

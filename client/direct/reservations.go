package direct

import (
	"context"
	"errors"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Reserve implements client.Reserver.
func (r *Redis) Reserve(ctx context.Context, req api.ReservationRequest) (api.ReservationOfAll, error) {
	reqs, err := transport.ValidateReservation(ctx, req)
	if err != nil {
		return api.ReservationOfAll{}, err
	}
	req.CheckRequest = api.CheckRequest{Checks: reqs}
	got, err := r.checks.Reserve(ctx, req)
	return transport.Decided(got, reservationError(ctx, err))
}

// Commit implements client.Reserver.
func (r *Redis) Commit(ctx context.Context, id string, req api.CommitRequest) (api.Settlement, error) {
	got, err := r.checks.Commit(ctx, id, req)
	return transport.Decided(got, reservationError(ctx, err))
}

// Cancel implements client.Reserver.
func (r *Redis) Cancel(ctx context.Context, id string) (api.Settlement, error) {
	got, err := r.checks.Cancel(ctx, id)
	return transport.Decided(got, reservationError(ctx, err))
}

// Renew implements client.Reserver.
func (r *Redis) Renew(ctx context.Context, id string, req api.RenewRequest) (api.Settlement, error) {
	got, err := r.checks.Renew(ctx, id, req)
	return transport.Decided(got, reservationError(ctx, err))
}

// reservationError adds to an error what may have happened to a call that Redis did not answer.
func reservationError(ctx context.Context, err error) error {
	if err != nil && (pause.Gone(ctx) != nil || errors.Is(err, api.ErrUnavailable)) &&
		!errors.Is(err, api.ErrNoAnswer) {
		return noAnswer(err)
	}
	return err
}

package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Reserve implements Reserver.
func (h *HTTP) Reserve(ctx context.Context, req api.ReservationRequest) (a api.ReservationOfAll, err error) {
	reqs, err := transport.ValidateReservation(ctx, req)
	if err != nil {
		return a, err
	}
	// One key is sent as a list too, so that the answer always has the same form.
	body := api.ReservationRequest{CheckRequest: api.CheckRequest{Checks: reqs}, TTLMs: req.TTLMs}
	if err := h.ask(ctx, http.MethodPost, "/v1/reservations", body, &a); err != nil {
		return api.ReservationOfAll{}, err
	}
	if len(a.Checks) != len(reqs) || a.Allowed != (a.ID != "") {
		return api.ReservationOfAll{}, transport.Lost(fmt.Errorf(
			"a reservation of %d keys: %d answers, id %q, allowed: %t", len(reqs), len(a.Checks), api.Shorten(a.ID),
			a.Allowed))
	}
	for i, r := range reqs {
		if err := transport.ValidateAnswer(a.Checks[i], r.Key); err != nil {
			return api.ReservationOfAll{}, err
		}
	}
	return a, nil
}

// Commit implements Reserver.
func (h *HTTP) Commit(ctx context.Context, id string, req api.CommitRequest) (api.Settlement, error) {
	return h.settle(ctx, http.MethodPost, id, "/commit", req)
}

// Cancel implements Reserver.
func (h *HTTP) Cancel(ctx context.Context, id string) (api.Settlement, error) {
	return h.settle(ctx, http.MethodDelete, id, "", nil)
}

// Renew implements Reserver.
func (h *HTTP) Renew(ctx context.Context, id string, req api.RenewRequest) (api.Settlement, error) {
	return h.settle(ctx, http.MethodPost, id, "/renew", req)
}

func (h *HTTP) settle(ctx context.Context, method, id, verb string, body any) (s api.Settlement, err error) {
	if err := validateID(id); err != nil {
		return s, err
	}
	err = h.ask(ctx, method, "/v1/reservations/"+url.PathEscape(id)+verb, body, &s)
	if err == nil && (s.ID != id || s.State == "") {
		err = transport.Lost(fmt.Errorf("an answer about the id %s with state: %q", api.Shorten(s.ID), s.State))
	}
	return s, err
}

// validateID refuses the id of a denied reservation, which is empty.
func validateID(id string) error {
	if id == "" {
		return fmt.Errorf("%w: the id is empty", api.ErrNoReservation)
	}
	return nil
}

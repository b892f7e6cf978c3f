package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/headers"
)

// reservationBody is the JSON form of api.ReservationRequest.
type reservationBody struct {
	Key    string      `json:"key"`
	Cost   *int64      `json:"cost"`
	Checks []checkBody `json:"checks"`
	TTLMs  *int64      `json:"ttl_ms"`
}

func (b reservationBody) request() (api.ReservationRequest, error) {
	one, err := checkBody{Key: b.Key, Cost: b.Cost, Checks: b.Checks}.request()
	req := api.ReservationRequest{CheckRequest: one}
	if err != nil {
		return req, err
	}
	for i, c := range one.Checks {
		if c.Mode != "" {
			return req, fmt.Errorf("%w: checks[%d] has a mode, a reservation has none", api.ErrBadRequest, i)
		}
	}
	if b.TTLMs != nil {
		if *b.TTLMs == 0 { // to the service it means that none is given
			return req, fmt.Errorf("%w: ttl_ms is 0, expected at least %d", api.ErrBadRequest,
				check.MinTTL.Milliseconds())
		}
		req.TTLMs = *b.TTLMs
	}
	return req, nil
}

func (s *Server) postReservation(w http.ResponseWriter, r *http.Request) error {
	var body reservationBody
	if err := s.readJSON(w, r, &body); err != nil {
		return err
	}
	r, err := withKey(r)
	if err != nil {
		return err
	}
	req, err := body.request()
	if err != nil {
		return err
	}
	got, err := s.checks.Reserve(r.Context(), req)
	if err != nil {
		return err
	}
	headers.Set(w.Header(), got.Checks, got.RetryAfterMs)
	switch {
	case got.Allowed && req.Checks == nil:
		return writeJSON(w, http.StatusCreated, api.Reservation{Reserved: got.Reserved,
			CheckAnswer: got.Checks[0]})
	case got.Allowed:
		return writeJSON(w, http.StatusCreated, got)
	case req.Checks == nil:
		a := got.Checks[0]
		return writeJSON(w, http.StatusTooManyRequests, denial{overLimit(w, http.StatusTooManyRequests, "", a), a})
	}
	return writeJSON(w, http.StatusTooManyRequests, denials{overLimit(w, http.StatusTooManyRequests,
		"nothing was reserved: ", got.Checks...), got.ChecksAnswer})
}

// postSettlement answers POST /v1/reservations/{id}/commit and .../renew.
func (s *Server) postSettlement(w http.ResponseWriter, r *http.Request) error {
	escaped, verb, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), reservationsPath), "/")
	id, _ := url.PathUnescape(escaped) // see rest: it has no error
	switch verb {
	case "commit":
		return settle(s, w, r, id, s.checks.Commit)
	case "renew":
		return settle(s, w, r, id, s.checks.Renew)
	}
	notFound(w, r, ", expected .../commit or .../renew")
	return nil
}

// settle reads the body, which may be missing, settles a reservation by it, and writes the answer.
func settle[T any](s *Server, w http.ResponseWriter, r *http.Request, id string,
	settles func(ctx context.Context, id string, body T) (api.Settlement, error)) error {
	var body T
	if r.ContentLength != 0 {
		if err := s.readJSON(w, r, &body); err != nil {
			return err
		}
	}
	got, err := settles(r.Context(), id, body)
	return respond(w, got, err)
}

func (s *Server) deleteReservation(w http.ResponseWriter, r *http.Request) error {
	got, err := s.checks.Cancel(r.Context(), rest(r, reservationsPath))
	return respond(w, got, err)
}

func (s *Server) postLease(w http.ResponseWriter, r *http.Request) error {
	var req api.LeaseRequest
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	got, err := s.checks.Lease(req)
	return respond(w, got, err)
}

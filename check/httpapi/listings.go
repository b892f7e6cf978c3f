package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inflight"
)

// Listings read much of Redis and make long answers. Without a bound, a thousand listings at once would take the CPU
// and the connections that checks need, and on_error would decide the checks. So only a few listings run at once.
// Checks do not wait for them.
const (
	listingsAtOnce = 4
	listingsQueued = 64 // more are refused
)

// OverviewInTurn is check.Service.Overview for the page. It waits for its turn like the listings of callers.
func (s *Server) OverviewInTurn(ctx context.Context, n int) (out api.Overview, err error) {
	err = s.inTurn(ctx, func(ctx context.Context) error {
		out, err = s.checks.Overview(ctx, n)
		return err
	})
	return out, err
}

// inTurn runs a listing when it is its turn. The wait and the listing may take AppendTimeout each.
func (s *Server) inTurn(ctx context.Context, list func(ctx context.Context) error) error {
	defer s.listings.Add(-1)
	if s.listings.Add(1) > listingsAtOnce+listingsQueued {
		return s.busy(busyListings, fmt.Sprintf("%d listings run and %d wait", listingsAtOnce, listingsQueued))
	}
	waiting, cancel := context.WithTimeout(ctx, s.config.AppendTimeout)
	defer cancel()
	if err := s.listing.Acquire(waiting, 1); err != nil {
		if ctx.Err() == nil {
			err = s.busy(busyListings, fmt.Sprintf("%d listings run for too long", listingsAtOnce))
		}
		return err
	}
	defer s.listing.Release(1)
	running, cancel := context.WithTimeout(ctx, s.config.AppendTimeout)
	defer cancel()
	return list(running)
}

// find runs a listing when it is its turn, and encodes the answer. The answer is written afterwards, so a caller that
// reads slowly does not hold up the others.
func (s *Server) find(r *http.Request, list func(ctx context.Context) (any, error)) (body []byte, err error) {
	err = s.inTurn(r.Context(), func(ctx context.Context) error {
		v, err := list(ctx)
		if err == nil {
			body, err = json.Marshal(v)
		}
		return err
	})
	return body, err
}

// list answers with what a listing finds.
func (s *Server) list(w http.ResponseWriter, r *http.Request, list func(ctx context.Context) (any, error)) error {
	body, err := s.find(r, list)
	if err != nil {
		return err
	}
	_, err = s.send(w, r, append(body, '\n'))
	return err
}

// send writes a long answer, or returns the error that is answered instead. The memory of all answers that are not
// read yet has one common bound.
func (s *Server) send(w http.ResponseWriter, r *http.Request, body []byte) (sent bool, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	err = s.answers.Write(w, r, body)
	if errors.Is(err, inflight.ErrFull) {
		w.Header().Del("Content-Length")
		return false, s.busy(busyMemory, err.Error())
	}
	return err == nil, nil // else the caller is gone
}

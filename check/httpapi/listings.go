package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"golang.org/x/sync/semaphore" // of the Go team: first come, first served

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

// listings bounds how many listings run and wait.
type listings struct {
	running *semaphore.Weighted
	asked   atomic.Int64 // those that run or wait
	refused func()
}

func newListings(refused func()) *listings {
	return &listings{running: semaphore.NewWeighted(listingsAtOnce), refused: refused}
}

// turn waits until a listing may run; done ends it.
func (l *listings) turn(ctx context.Context) (done func(), err error) {
	if l.asked.Add(1) > listingsAtOnce+listingsQueued {
		l.asked.Add(-1)
		l.refused()
		return nil, busyError(fmt.Sprintf("%d listings run and %d wait", listingsAtOnce, listingsQueued))
	}
	if err := l.running.Acquire(ctx, 1); err != nil {
		l.asked.Add(-1)
		if context.Cause(ctx) == errBusy { //nolint:errorlint // the very one that inTurn gives
			l.refused()
			err = busyError(fmt.Sprintf("%d listings run for too long", listingsAtOnce))
		}
		return nil, err
	}
	return func() {
		l.running.Release(1)
		l.asked.Add(-1)
	}, nil
}

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
	waiting, cancel := context.WithTimeoutCause(ctx, s.config.AppendTimeout, errBusy)
	defer cancel()
	done, err := s.listings.turn(waiting)
	if err != nil {
		return err
	}
	defer done()
	running, cancel := context.WithTimeout(ctx, s.config.AppendTimeout)
	defer cancel()
	return list(running)
}

// find makes the answer of a listing in its turn. The answer is written afterwards, so a caller that reads slowly
// does not hold up the others.
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
		return false, s.busy(err)
	}
	return err == nil, nil // else the caller is gone
}

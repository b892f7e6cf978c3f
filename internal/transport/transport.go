// Package transport is what all transports of checks share: validation of requests, checks that are decided
// independently, and errors that say what may have happened to a request.
package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
)

// NotSent wraps the error of a request that may be sent again.
func NotSent(err error) error {
	return fmt.Errorf("%w: %w: %w: %w", api.ErrNoAnswer, api.ErrNotSent, api.ErrUnavailable, err)
}

// Lost wraps the error of a request whose reply did not come: it may have been charged, and if it is sent again it
// may be charged twice.
func Lost(err error) error {
	return &lost{fmt.Errorf("%w: %w: %w", api.ErrNoAnswer, api.ErrOutcomeUnknown, err), err}
}

// lost is the error of Lost, so that ErrorOf finds what it wraps.
type lost struct {
	error
	cause error
}

func (l *lost) Unwrap() error { return l.error }

// ErrorOf returns the error of a request for these checks. If none of them charges, nothing was charged, whether or
// not the request was lost.
func ErrorOf(err error, reqs ...api.CheckRequest) error {
	var l *lost
	charges := func(r api.CheckRequest) bool { return r.Mode != api.ModeLook }
	if errors.As(err, &l) && !slices.ContainsFunc(reqs, charges) {
		return NotSent(l.cause)
	}
	return err
}

// validateKey refuses the idempotency key of a context, if it has one, that no server accepts.
func validateKey(ctx context.Context) error {
	if !api.Repeatable(ctx) {
		return nil
	}
	return api.IdempotencyKey(ctx).Validate()
}

// Decided returns the answer, or the zero value if there is an error.
func Decided[T any](answer T, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return answer, nil
}

// Validate returns the request with its cost filled in. It refuses what no server accepts, such as a bad key in ctx.
func Validate(ctx context.Context, req api.CheckRequest) (api.CheckRequest, error) {
	if err := validateKey(ctx); err != nil {
		return req, err
	}
	return validate(req)
}

func validate(req api.CheckRequest) (api.CheckRequest, error) {
	req.Cost = cmp.Or(req.Cost, 1)
	if req.Checks != nil {
		return req, fmt.Errorf("%w: a request with checks of its own is one for CheckAll", api.ErrBadRequest)
	}
	if err := api.ValidateKey(req.Key); err != nil {
		return req, err
	}
	if err := req.Mode.Validate(); err != nil {
		return req, err
	}
	if err := api.ValidateValues(req.Values); err != nil {
		return req, err
	}
	return req, api.ValidateCount(req.Cost)
}

var errNoKeys = fmt.Errorf("%w: no key is asked for", api.ErrBadRequest)

// ValidateAll validates each request, their modes together, and the idempotency key of ctx.
func ValidateAll(ctx context.Context, reqs []api.CheckRequest) ([]api.CheckRequest, error) {
	if len(reqs) == 0 {
		return nil, errNoKeys
	}
	if err := validateKey(ctx); err != nil {
		return nil, err
	}
	out := make([]api.CheckRequest, len(reqs))
	for i, r := range reqs {
		var err error
		if out[i], err = validate(r); err != nil {
			return nil, fmt.Errorf("checks[%d]: %w", i, err)
		}
	}
	return out, api.ValidateModes(out)
}

// LongestMs is the longest time.Duration, in ms.
const LongestMs = math.MaxInt64 / int64(time.Millisecond)

// ValidateAnswer refuses an answer that cannot be that to a check of the key: then nobody decided.
func ValidateAnswer(a api.CheckAnswer, key string) error {
	if a.Key != key || a.Source == "" || a.RetryAfterMs < -1 || a.RetryAfterMs > LongestMs {
		return Lost(fmt.Errorf("an answer about the key %s, with source: %q and retry_after_ms: %d",
			api.Shorten(a.Key), a.Source, a.RetryAfterMs))
	}
	return nil
}

// ValidateReservation returns the keys of a reservation, one or several, with their costs filled in.
func ValidateReservation(ctx context.Context, req api.ReservationRequest) ([]api.CheckRequest, error) {
	if req.Checks != nil && (req.Key != "" || req.Cost != 0) {
		return nil, fmt.Errorf("%w: a reservation has either a key and its cost or checks", api.ErrBadRequest)
	}
	if req.TTLMs < 0 {
		return nil, fmt.Errorf("%w: ttl_ms is %d, expected 0 or more", api.ErrBadRequest, req.TTLMs)
	}
	if req.Checks == nil { // the error names no checks[0], which the caller did not give
		if req.Mode != "" {
			return nil, fmt.Errorf("%w: it has a mode, a reservation has none", api.ErrBadRequest)
		}
		one, err := Validate(ctx, req.CheckRequest)
		return []api.CheckRequest{one}, err
	}
	reqs, err := ValidateAll(ctx, req.Checks)
	for i, r := range reqs {
		if r.Mode != "" || req.Mode != "" {
			return nil, fmt.Errorf("%w: checks[%d] has a mode, a reservation has none", api.ErrBadRequest, i)
		}
	}
	return reqs, err
}

// EachValid is CheckEach for the requests that a server would accept. The others get their error without a call.
func EachValid(ctx context.Context, reqs []api.CheckRequest,
	check func(valid []api.CheckRequest) ([]api.Each, error)) ([]api.Each, error) {
	if err := validateKey(ctx); err != nil && len(reqs) > 0 {
		return nil, err
	}
	return EachUnknown(reqs, func(_ int, r *api.CheckRequest) (e api.Each, known bool) {
		*r, e.Err = validate(*r)
		return e, e.Err != nil
	}, check)
}

// EachUnknown is CheckEach that calls check only for the requests whose results known does not return. known may change
// a request before it is sent.
func EachUnknown(reqs []api.CheckRequest, known func(i int, r *api.CheckRequest) (api.Each, bool),
	check func(unknown []api.CheckRequest) ([]api.Each, error)) ([]api.Each, error) {
	if len(reqs) == 0 {
		return nil, errNoKeys
	}
	out := make([]api.Each, len(reqs))
	unknown := make([]api.CheckRequest, 0, len(reqs))
	var index []int // in unknown → in reqs
	for i, r := range reqs {
		n := len(unknown)
		unknown = append(unknown, r)
		var isKnown bool
		if out[i], isKnown = known(i, &unknown[n]); isKnown {
			unknown = unknown[:n]
			continue
		}
		index = append(index, i)
	}
	if len(unknown) == 0 {
		return out, nil
	}
	results, err := check(unknown)
	if err != nil {
		return nil, ErrorOf(err, unknown...)
	}
	for j, i := range index {
		out[i] = results[j]
		out[i].Err = ErrorOf(results[j].Err, unknown[j])
	}
	return out, nil
}

// atOnce bounds how many checks InParallel has under way.
const atOnce = 16

// InParallel is CheckEach for a transport that has no call for it.
func InParallel(ctx context.Context, reqs []api.CheckRequest,
	check func(context.Context, api.CheckRequest) (api.CheckAnswer, error)) []api.Each {
	out := make([]api.Each, len(reqs))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, r := range reqs {
		g.Go(func() error {
			out[i].CheckAnswer, out[i].Err = check(api.Nth(ctx, i), r)
			return nil
		})
	}
	_ = g.Wait() // each has its own error
	return out
}

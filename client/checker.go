package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/streamcounter/streamcounter/api"
)

// Checker asks whether keys may spend now. HTTP, GRPC and direct.Redis are
// three ways to ask; Client puts a deadline, a breaker and a policy around one.
//
// A denial is an answer, not an error. Errors keep their identity over every
// transport: errors.Is finds api.ErrBadKey, ErrBadCount, ErrCostExceedsLimit,
// ErrUnauthenticated and the others. Where nobody decided, the error wraps
// ErrNoAnswer.
type Checker interface {
	// Check charges one key if it is admitted.
	Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error)
	// CheckAll charges all keys if all are admitted, else none.
	CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error)
	// CheckEach decides each key by itself; one Each per request, in order. The
	// error is about all of them.
	CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]Each, error)
	// Peek looks at a key and charges nothing. The error wraps api.ErrNoRule
	// where no rule matches.
	Peek(ctx context.Context, key string) (api.KeyState, error)
}

// Each is the answer to one request of CheckEach, or why there is none.
type Each struct {
	api.CheckAnswer
	Err error
}

var (
	// ErrNoAnswer: nobody decided, so a policy has to. It comes together with
	// ErrNotSent, api.ErrOutcomeUnknown or api.ErrUnavailable.
	ErrNoAnswer = errors.New("no answer")
	// ErrNotSent: the request has certainly charged nothing, as it never left or
	// was only a look. It may be sent again.
	ErrNotSent = errors.New("nothing was charged")
)

// NotSent wraps the error of a request that may be sent again.
func NotSent(err error) error {
	return fmt.Errorf("%w: %w: %w: %w", ErrNoAnswer, ErrNotSent, api.ErrUnavailable, err)
}

// Lost wraps the error of a request whose reply did not come: it may have been
// charged, and sent again it may be charged twice.
func Lost(err error) error {
	return fmt.Errorf("%w: %w: %w", ErrNoAnswer, api.ErrOutcomeUnknown, err)
}

// Validate gives the request with its cost filled in, and refuses what no server takes.
func Validate(req api.CheckRequest) (api.CheckRequest, error) {
	req.Cost = cmp.Or(req.Cost, 1)
	if req.Checks != nil {
		return req, fmt.Errorf("%w: a request with checks of its own is one for CheckAll", api.ErrBadRequest)
	}
	if err := api.ValidateKey(req.Key); err != nil {
		return req, err
	}
	return req, api.ValidateCount(req.Cost)
}

// ValidateAll does so with each.
func ValidateAll(reqs []api.CheckRequest) ([]api.CheckRequest, error) {
	if len(reqs) == 0 {
		return nil, fmt.Errorf("%w: no key is asked for", api.ErrBadRequest)
	}
	out := make([]api.CheckRequest, len(reqs))
	for i, r := range reqs {
		var err error
		if out[i], err = Validate(r); err != nil {
			return nil, fmt.Errorf("checks[%d]: %w", i, err)
		}
	}
	return out, nil
}

// EachValid is CheckEach for those of the requests that a server would take; the
// others have their error, and nobody is asked.
func EachValid(reqs []api.CheckRequest, check func(valid []api.CheckRequest) ([]Each, error)) ([]Each, error) {
	if len(reqs) == 0 {
		_, err := ValidateAll(reqs)
		return nil, err
	}
	out := make([]Each, len(reqs))
	var valid []api.CheckRequest
	var at []int // in valid → in reqs
	for i, r := range reqs {
		r, err := Validate(r)
		if err != nil {
			out[i].Err = err
			continue
		}
		valid, at = append(valid, r), append(at, i)
	}
	if len(valid) == 0 {
		return out, nil
	}
	some, err := check(valid)
	if err != nil {
		return nil, err
	}
	for j, i := range at {
		out[i] = some[j]
	}
	return out, nil
}

// atOnce bounds how many checks InParallel has under way.
const atOnce = 16

// InParallel is CheckEach for a transport that has no call for it.
func InParallel(ctx context.Context, reqs []api.CheckRequest, check func(context.Context, api.CheckRequest) (api.CheckAnswer, error)) []Each {
	out := make([]Each, len(reqs))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, r := range reqs {
		g.Go(func() error {
			out[i].CheckAnswer, out[i].Err = check(ctx, r)
			return nil
		})
	}
	_ = g.Wait() // each has its own error
	return out
}

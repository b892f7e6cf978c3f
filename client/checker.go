package client

import (
	"context"

	"github.com/streamcounter/streamcounter/api"
)

// Checker asks whether keys may spend now. HTTP, grpc.Client and direct.Redis are three ways to ask; Client adds a
// deadline, a breaker and a policy to one of them.
//
// A denial is an answer, not an error. Errors keep their identity over every transport: errors.Is finds
// api.ErrBadKey, ErrBadCount, ErrCostExceedsLimit, ErrUnauthenticated and the others. If nobody decided, the error
// wraps api.ErrNoAnswer.
type Checker interface {
	// Check charges one key if it is admitted.
	Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error)
	// CheckAll charges all keys if all are admitted, else none.
	CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error)
	// CheckEach decides each key independently. It returns one api.Each per request, in order. The error is for all
	// of them.
	CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error)
	// Peek looks at a key and charges nothing. If no rule matches, the error wraps api.ErrNoRule.
	Peek(ctx context.Context, key string) (api.KeyState, error)
}

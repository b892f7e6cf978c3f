package direct_test

import (
	"context"
	"errors"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A context that ended before the call, or whose deadline had passed: nothing was sent.
func TestACallerWhoHasLeftChargesNothing(t *testing.T) {
	r, err := direct.NewRedis(t.Context(), streamtest.AnyRedis(t), direct.Config{Rules: tenAMinute(t),
		Prefix: streamtest.Prefix(t)})
	testkit.Must(t, err)
	t.Cleanup(r.Close)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	req := api.CheckRequest{Key: "user:1"}
	for why, ctx := range map[error]context.Context{context.Canceled: canceled,
		context.DeadlineExceeded: testkit.Late(t.Context())} {
		for name, call := range map[string]func() error{
			"Check": func() error { _, err := r.Check(ctx, req); return err },
			"CheckAll": func() error {
				_, err := r.CheckAll(ctx, []api.CheckRequest{req, {Key: "user:2"}})
				return err
			},
			"CheckEach": func() error {
				each, err := r.CheckEach(ctx, []api.CheckRequest{req})
				return errors.Join(err, each[0].Err)
			},
			"Reserve": func() error {
				_, err := r.Reserve(ctx, api.ReservationRequest{CheckRequest: req})
				return err
			},
			"Commit": func() error { _, err := r.Commit(ctx, "0a-1", api.CommitRequest{}); return err },
		} {
			if err := call(); !errors.Is(err, api.ErrNotSent) || errors.Is(err, api.ErrOutcomeUnknown) ||
				!errors.Is(err, why) {
				t.Errorf("%s: %v, want that nothing was sent: %v", name, err, why)
			}
		}
	}
	if k, err := r.Peek(t.Context(), "user:1"); err != nil || k.Windows[0].Used != 0 {
		t.Errorf("%+v, %v, want nothing used", k, err)
	}
}

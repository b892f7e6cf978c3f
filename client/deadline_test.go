package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// Redis is frozen, and the rule has on_error: deny. With the defaults of both, the server's answer comes before the
// client's policy, which allows.
func TestTheServerDecidesBeforeTheClientGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{answer: func(ctx context.Context, _ []api.CheckRequest) (api.ChecksAnswer, error) {
			select {
			case <-ctx.Done():
				return api.ChecksAnswer{}, transport.Lost(ctx.Err())
			case <-time.After(settings.New().Checks.Timeout + 100*time.Millisecond): // the way there and back
				return api.ChecksAnswer{}, api.ErrUnavailable
			}
		}}
		a, err := newClient(t, s, client.Config{}).Check(t.Context(), api.CheckRequest{Key: "k"})
		if a.Allowed || !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%+v, %v, want the server's 503", a, err)
		}
	})
}

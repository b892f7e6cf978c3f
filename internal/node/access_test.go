package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/internal/reload"
)

// While a file is refused, this is logged again and again. When the file is accepted, it is not logged any more.
func TestARefusalIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		rules := reload.NewPushed("limits", nil, 1)
		take := func(err error) { _ = rules.Take(func() (int, error) { return 2, err }) }
		take(errors.New("no unit"))
		var running sync.WaitGroup
		running.Go(func() {
			repeatRefusals(ctx, slog.New(slog.NewTextHandler(&text, nil)),
				map[string]fresh{"limits": pushedFresh{rules}})
		})
		want := func(n int) {
			t.Helper()
			time.Sleep(3*repeatEvery + time.Second)
			synctest.Wait()
			if got := strings.Count(text.String(), `what=limits error="no unit"`); got != n {
				t.Errorf("said %d times, want %d:\n%s", got, n, text.String())
			}
		}
		want(3)
		take(nil)
		want(3)
		cancel()
		running.Wait()
	})
}

type pushedFresh struct{ *reload.Pushed[int] }

func (pushedFresh) Reload() error       { return nil }
func (pushedFresh) Run(context.Context) {}

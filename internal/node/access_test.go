package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/internal/reload"
)

// While a file is refused, this is logged again and again, by every process that follows files. When the file is
// accepted, it is not logged any more.
func TestARefusalIsRepeated(t *testing.T) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // starts the runtime's goroutine of signals outside the bubble
	defer signal.Stop(hup)
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		rules := reload.NewPushed("limits", nil, 1)
		take := func(err error) { _ = rules.Take(func() (int, error) { return 2, err }) }
		take(errors.New("no unit"))
		var running sync.WaitGroup
		n := &node{log: slog.New(slog.NewTextHandler(&text, nil)), registry: prometheus.NewRegistry(),
			reloaders: map[string]reloader{"limits": pushedFresh{rules}}}
		n.followFiles()
		for _, do := range n.background {
			running.Go(func() { do(ctx) })
		}
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

package client_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// throughProxy opens each transport through a proxy before its server.
var throughProxy = []struct {
	name string
	open func(t *testing.T, w *world) (client.Checker, *streamtest.Proxy)
}{
	{"http", func(t *testing.T, w *world) (client.Checker, *streamtest.Proxy) {
		p := streamtest.NewProxy(t, w.serveHTTP(t))
		return overHTTP(t, p.Addr), p
	}},
	{"grpc", func(t *testing.T, w *world) (client.Checker, *streamtest.Proxy) {
		p := streamtest.NewProxy(t, w.serveGRPC(t, true))
		return overGRPC(t, p.Addr), p
	}},
	{"redis", func(t *testing.T, w *world) (client.Checker, *streamtest.Proxy) {
		p := streamtest.NewProxy(t, strings.TrimPrefix(streamtest.Redis(t), "redis://"))
		return overRedis(t, w, streamtest.Connect(t, p.Addr)), p
	}},
}

func throughEveryProxy(t *testing.T, test func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy)) {
	for _, way := range throughProxy {
		t.Run(way.name, func(t *testing.T) {
			w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), patience, tenAMinute)
			c, p := way.open(t, w)
			_, err := c.Peek(t.Context(), "user:1") // connected
			testkit.Must(t, err)
			test(t, w, c, p)
		})
	}
}

func newClient(t testing.TB, c client.Checker, config client.Config) *client.Client {
	t.Helper()
	n, err := client.New(c, config)
	testkit.Must(t, err)
	return n
}

// A check whose reply was lost has been charged. Without an idempotency key it is not sent again.
func TestALostReplyIsNotSentAgain(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		// lose sends a check, and cuts the connection when the check is charged and before any reply comes back.
		lose := func(charged int64, ask func()) {
			p.HoldReplies()
			done := make(chan struct{})
			go func() { defer close(done); ask() }()
			streamtest.Eventually(t, patience, "the check is charged", func() (bool, string) {
				k, err := w.service.Peek(t.Context(), "user:1")
				return err == nil && k.Windows[0].Used == charged, errorText(err)
			})
			p.Sever()
			p.Heal()
			<-done
		}
		lose(1, func() {
			_, err := c.Check(t.Context(), api.CheckRequest{Key: "user:1"})
			if !errors.Is(err, api.ErrOutcomeUnknown) || !errors.Is(err, api.ErrNoAnswer) ||
				errors.Is(err, api.ErrNotSent) {
				t.Errorf("error %v, want that the outcome is unknown", err)
			}
		})
		n := newClient(t, c, client.Config{Timeout: patience, Retries: 5, NoIdempotency: true})
		streamtest.Eventually(t, patience, "it is connected again", func() (bool, string) {
			_, err := c.Peek(t.Context(), "user:1")
			return err == nil, errorText(err)
		})
		lose(2, func() {
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:1"})
			if err != nil || !a.Allowed || a.Source != api.SourcePolicy ||
				!strings.Contains(a.Note, "outcome unknown") {
				t.Errorf("%+v, %v, want the policy's answer, which says why", a, err)
			}
		})
		if k, err := w.service.Peek(t.Context(), "user:1"); err != nil || k.Windows[0].Used != 2 {
			t.Errorf("%+v, %v, want 2 used: sent once, though there were retries left", k, err)
		}
	})
}

// A server that refuses connections has charged nothing, and the error says so.
func TestWhatWasNotSentSaysSo(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		p.Refuse()
		_ = p.Close() // connections are refused
		streamtest.Eventually(t, patience, "the transport notices", func() (bool, string) {
			_, err := c.Check(t.Context(), api.CheckRequest{Key: "user:2"})
			return errors.Is(err, api.ErrNotSent) && errors.Is(err, api.ErrNoAnswer) &&
				errors.Is(err, api.ErrUnavailable) &&
				!errors.Is(err, api.ErrOutcomeUnknown), errorText(err)
		})
	})
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// The server sends nothing any more, and the connection does not end: the policy answers at the deadline, and the
// server answers again when it is back.
func TestAServerThatFallsSilent(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		n := newClient(t, c, client.Config{Timeout: 100 * time.Millisecond,
			RulePolicies: map[string]client.Policy{"user": client.Local}})
		// on a busy machine it may be late
		streamtest.Eventually(t, patience, "the first answer", func() (bool, string) {
			a, _ := n.Check(t.Context(), api.CheckRequest{Key: "user:3"})
			return a.Source == api.SourceRedis, a.Note
		})
		p.Blackhole()
		var longest time.Duration
		for i := range 20 { // the proxy holds all back until the test says so: none of these waits for it
			began := time.Now()
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:3"})
			longest = max(longest, time.Since(began))
			if err != nil || a.Source != api.SourceLocal || a.Allowed != (i < 10) {
				t.Fatalf("check %d: %+v, %v, want this process's own count of 10", i, a, err)
			}
			if a, err = n.With(client.Deny).Check(t.Context(), api.CheckRequest{Key: "user:3"}); a.Allowed ||
				!errors.Is(err, api.ErrUnavailable) {
				t.Fatalf("check %d: %+v, %v, want it denied and the error", i, a, err)
			}
		}
		p.Heal()
		began := time.Now()
		streamtest.Eventually(t, patience, "the server answers again", func() (bool, string) {
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:4"})
			return err == nil && a.Source == api.SourceRedis, a.Note
		})
		t.Logf("longest answer while it was silent: %s of 100ms; back after %s", longest.Round(time.Millisecond),
			time.Since(began).Round(time.Millisecond))
	})
}

package client_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// throughEveryProxy opens each transport through a proxy before its server.
func throughEveryProxy(t *testing.T, test func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy)) {
	throughProxies(t, transports, tenAMinute, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		_, err := c.Peek(t.Context(), "user:1") // connected
		testkit.Must(t, err)
		test(t, w, c, p)
	})
}

func throughProxies(t *testing.T, ways []way, rule *windows.Rule,
	test func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy)) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			w := newWorld(t, streamtest.Connect(t, streamtest.Redis(t)), patience, rule)
			p := streamtest.NewProxy(t, way.serve(w, t))
			test(t, w, way.dial(t, w, p.Addr), p)
		})
	}
}

func newClient(t testing.TB, c client.Checker, config client.Config) *client.Client {
	t.Helper()
	n, err := client.New(c, config)
	testkit.Must(t, err)
	return n
}

// A check whose reply was lost has been charged. A server that refuses connections has charged nothing. The errors say
// so, and a transport sends nothing again.
func TestWhatMayHaveBeenCharged(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		p.HoldReplies()
		got := make(chan error, 1)
		go func() { got <- ask(t.Context(), c, "check", api.CheckRequest{Key: "user:1"}) }()
		streamtest.Eventually(t, "the check is charged", func() (bool, string) {
			k, err := w.service.Peek(t.Context(), "user:1")
			return err == nil && k.Windows[0].Used == 1, fmt.Sprint(err)
		})
		p.Sever()
		p.Heal()
		if err := <-got; outcome(err) != wasLost {
			t.Errorf("error %v, want that the outcome is unknown", err)
		}
		streamtest.Eventually(t, "it is connected again", func() (bool, string) {
			k, err := c.Peek(t.Context(), "user:1")
			if err == nil && k.Windows[0].Used != 1 {
				t.Fatalf("%+v, want 1 used: sent once", k)
			}
			return err == nil, fmt.Sprint(err)
		})
		p.Refuse()
		_ = p.Close() // connections are refused
		streamtest.Eventually(t, "the transport notices", func() (bool, string) {
			err := ask(t.Context(), c, "check", api.CheckRequest{Key: "user:2"})
			return outcome(err) == wasNotSent, fmt.Sprint(err)
		})
	})
}

// The server sends nothing any more, and the connection does not end: the policy answers at the deadline, and the
// server answers again when it is back.
func TestAServerThatFallsSilent(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		n := newClient(t, c, client.Config{Timeout: 100 * time.Millisecond})
		wantAnswer := func(source api.Source) { // on a busy machine the server may be late
			t.Helper()
			streamtest.Eventually(t, string(source), func() (bool, string) {
				a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:3"})
				return err == nil && a.Source == source, a.Note
			})
		}
		wantAnswer(api.SourceRedis)
		p.Blackhole()
		wantAnswer(api.SourcePolicy)
		for i := range 20 { // the proxy holds all back until the test says so: none of these waits for it
			a, err := n.Check(t.Context(), api.CheckRequest{Key: "user:3"})
			if err != nil || a.Source != api.SourcePolicy || !a.Allowed {
				t.Fatalf("check %d: %+v, %v, want the policy's answer", i, a, err)
			}
		}
		p.Heal()
		wantAnswer(api.SourceRedis)
	})
}

// A server without Redis knows the state of no key, whatever on_error says.
func TestPeekWithoutRedis(t *testing.T) {
	local := rule("local", func(r *windows.Rule) { r.OnError = windows.OnErrorLocal }, tenAMinute.Windows...)
	w := newWorld(t, streamtest.Connect(t, "127.0.0.1:1"), patience, tenAMinute, local, watched)
	for _, c := range []client.Checker{overHTTP(t, w.serveHTTP(t)), overGRPC(t, w.serveGRPC(t, true))} {
		for _, key := range []string{"user:1", "local:1", "shadow:1"} {
			if s, err := c.Peek(t.Context(), key); outcome(err) != api.NameOf(api.ErrUnavailable) || s.Key != "" {
				t.Errorf("%T, %s: %+v, %v", c, key, s, err)
			}
		}
	}
}

// Replies are lost at random. Every check is answered in the end, and Redis has exactly what the answers say was
// charged: no more, and no less.
func TestEachCheckIsChargedOnce(t *testing.T) {
	throughEveryProxy(t, func(t *testing.T, w *world, c client.Checker, p *streamtest.Proxy) {
		n := newClient(t, c, client.Config{Timeout: patience, Retries: 10})
		random := rand.New(rand.NewPCG(1, 2))
		charged, replayed := int64(0), 0
		count := func(a api.CheckAnswer, err error) {
			t.Helper()
			if err != nil || a.Source != api.SourceRedis {
				t.Fatalf("%+v, %v, expected Redis's answer", a, err)
			}
			if a.Allowed || a.Charged {
				charged += a.Cost
			}
			if a.Replayed {
				replayed++
			}
		}
		for i := range 60 {
			mode := []api.Mode{api.ModeCharge, api.ModeTake}[i%2]
			one := api.CheckRequest{Key: "user:1", Cost: 1 + random.Int64N(2), Mode: mode}
			p.LoseReplies(random.IntN(3))
			switch i % 5 {
			case 0:
				list, err := n.CheckEach(t.Context(), []api.CheckRequest{one, one})
				testkit.Must(t, err)
				for _, e := range list {
					count(e.CheckAnswer, e.Err)
				}
			case 1:
				all, err := n.CheckAll(t.Context(), []api.CheckRequest{one, {Key: "user:2", Mode: mode}})
				testkit.Must(t, err)
				count(all.Checks[0], nil)
			default:
				count(n.Check(t.Context(), one))
			}
		}
		p.Heal()
		k, err := w.service.Peek(t.Context(), "user:1")
		testkit.Must(t, err)
		if used := k.Windows[0].Used; used != charged {
			t.Errorf("%d used, the answers say %d", used, charged)
		}
		if replayed == 0 {
			t.Error("no lost answer was asked for again")
		}
	})
}

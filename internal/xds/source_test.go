package xds_test

import (
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	control "github.com/streamcounter/streamcounter/internal/streamtest/xds"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/internal/xds"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// resource is a domain with one limit.
func resource(name, domain, key string, n uint32) *rlsconf.RateLimitConfig {
	return &rlsconf.RateLimitConfig{Name: name, Domain: domain, Descriptors: []*rlsconf.RateLimitDescriptor{
		{Key: key, RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_MINUTE, RequestsPerUnit: n}}}}
}

// world is a source that runs.
type world struct {
	*xds.Source
	t         *testing.T
	server    *control.Server
	log       testkit.Log
	good, bad atomic.Int64 // attempts to load
}

func (w *world) logged(text string) int { return strings.Count(w.log.String(), text) }

// limit is what client=a may do a minute; 0: there is no limit.
func (w *world) limit(domain string) uint32 {
	l, _ := w.Limits().Find(domain, &commonv3.RateLimitDescriptor{
		Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "client", Value: "a"}}})
	return l.PerUnit
}

func following(t *testing.T, change func(*xds.Config)) *world {
	t.Helper()
	w := &world{t: t, server: control.New(t, nil)}
	c := xds.Config{Server: w.server.Addr, Node: control.Node, FirstWait: 5 * time.Millisecond,
		LongestWait: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&w.log, nil))}
	if change != nil {
		change(&c)
	}
	var err error
	w.Source, err = xds.New(c)
	testkit.Must(t, err)
	w.OnReload(func(err error) {
		if err != nil {
			w.bad.Add(1)
		} else {
			w.good.Add(1)
		}
	})
	testkit.Background(t, w.Run)
	return w
}

// Limits come before and after. One that cannot be counted is refused, for as long as the server has it; the others
// are in force.
func TestLimitsFollowTheServer(t *testing.T) {
	t.Parallel()
	w := following(t, nil)
	if w.Ready() == nil {
		t.Error("ready without any limits")
	}
	w.server.Set("1", resource("a", "edge", "client", 5), resource("b", "other", "client", 7))
	w.server.Start()
	w.server.Acked("1")
	if w.limit("edge") != 5 || w.limit("other") != 7 || w.Ready() != nil {
		t.Errorf("edge %d, other %d, want 5 and 7; %v", w.limit("edge"), w.limit("other"), w.Ready())
	}
	w.server.Set("2", resource("a", "edge", "client", 6))
	w.server.Acked("2")
	if w.limit("edge") != 6 || w.limit("other") != 0 {
		t.Errorf("edge %d, other %d, want 6 and no limit", w.limit("edge"), w.limit("other"))
	}
	bad := resource("c", "third", "client", 1)
	bad.Descriptors[0].RateLimit.Unit = rlsconf.RateLimitUnit_UNKNOWN
	w.server.Set("3", resource("a", "edge", "client", 9), bad)
	if why := w.server.Nacked("2"); !strings.Contains(why, `resource "c": descriptors[0].rate_limit: unit is missing`) {
		t.Errorf("refused because: %s", why)
	}
	if w.limit("edge") != 9 || w.limit("third") != 0 || w.Refused() == nil {
		t.Errorf("edge %d, third %d, want 9 and no limit; refused: %v", w.limit("edge"), w.limit("third"), w.Refused())
	}
	w.server.Stop()
	w.server.Start()
	w.server.Nacked("")                                   // on a new stream too
	w.server.Set("4", resource("a", "edge", "client", 6)) // what was in force before
	w.server.Acked("4")
	if w.limit("edge") != 6 || w.Refused() != nil {
		t.Errorf("edge %d, want 6; refused: %v", w.limit("edge"), w.Refused())
	}
	w.server.Set("5", resource("a", "edge", "client", 9), bad) // refused again after others were taken
	w.server.Nacked("4")
	if w.limit("edge") != 9 || w.Refused() == nil {
		t.Errorf("edge %d, want 9 again; refused: %v", w.limit("edge"), w.Refused())
	}
	w.server.Set("6") // the last policy is gone
	w.server.Acked("6")
	if w.limit("edge") != 0 || w.good.Load() < 6 || w.bad.Load() != 0 {
		t.Errorf("edge %d, want no limit; %d good and %d bad loads, want at least 6 and 0", w.limit("edge"),
			w.good.Load(), w.bad.Load())
	}
}

// When a server goes away and comes back, the limits are still in force. A server that sends the same limits under a
// version that it used before does not count as one with other limits.
func TestTheServerGoesAndComesBack(t *testing.T) {
	t.Parallel()
	server := control.New(t, nil)
	server.Set("1", resource("a", "edge", "client", 5), resource("b", "other", "client", 7))
	server.Start()
	w := following(t, func(c *xds.Config) { c.Server = server.Addr })
	w.server = server
	server.Acked("1")
	streams := w.server.Streams()
	w.server.Stop()
	streamtest.EventuallyLogged(t, &w.log, "the xDS server is away", 1)
	if w.limit("edge") != 5 {
		t.Errorf("edge %d while the server is away, want 5", w.limit("edge"))
	}
	w.server.Start()
	streamtest.EventuallyLogged(t, &w.log, "the xDS server answers again", 1)
	if w.server.Streams() <= streams {
		t.Error("no new stream")
	}
	if w.good.Load() != 1 || w.bad.Load() != 0 {
		t.Errorf("%d good and %d bad loads of what was the same, want 1 and 0", w.good.Load(), w.bad.Load())
	}
	w.server.Stop()
	w.server.Set("1", resource("a", "edge", "client", 8)) // a server that restarted and counts anew
	w.server.Start()
	streamtest.Eventually(t, "the new limit", func() (bool, string) { return w.limit("edge") == 8, "" })
}

// While the server is away, Run alone decides when to try again: between two attempts the only connections are the
// test's own.
func TestAttemptsArePaced(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	var accepted atomic.Int64
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			accepted.Add(1)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); accepting.Wait() })
	w := following(t, func(c *xds.Config) { c.Server, c.FirstWait = l.Addr().String(), time.Hour })
	streamtest.EventuallyLogged(t, &w.log, "the xDS server is away", 1)
	const own = 200
	for range own {
		conn, err := net.Dial("tcp", l.Addr().String())
		testkit.Must(t, err)
		_, _ = conn.Read(make([]byte, 1)) // it is accepted, and those before it are too
		_ = conn.Close()
	}
	if n := accepted.Load(); n != own+1 {
		t.Errorf("%d connections in one attempt, want 1", n-own)
	}
}

// A server that comes back under another authority is accepted once the files have that authority, and the log has
// each reason of its absence once.
func TestCertificatesChange(t *testing.T) {
	t.Parallel()
	ours, others := streamtest.NewAuthority(t), streamtest.NewAuthority(t)
	server := control.New(t, ours.Config(ours.Issue("gateway")))
	server.Set("1", resource("a", "edge", "client", 5))
	server.Start()
	var trusted atomic.Pointer[tls.Config]
	trusted.Store(ours.Config("", ""))
	w := following(t, func(x *xds.Config) { x.Server, x.TLS = server.Addr, trusted.Load })
	server.Acked("1")
	server.Stop()
	server.SetTLS(others.Config(others.Issue("gateway")))
	server.Set("2", resource("a", "edge", "client", 6))
	server.Start()
	streamtest.EventuallyLogged(t, &w.log, "certificate signed by unknown authority", 1)
	first := w.logged("the xDS server is away")
	trusted.Store(others.Config("", ""))
	server.Acked("2")
	if n := w.logged("certificate signed by unknown authority"); n != 1 || first < 2 || w.limit("edge") != 6 {
		t.Errorf("the reason is logged %d times, with others %d, edge %d", n, first, w.limit("edge"))
	}
}

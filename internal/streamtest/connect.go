package streamtest

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Connect returns a client like those of the commands: it sends nothing twice and gives up at its context's deadline.
// url is a URL of Redis or a host:port; change may alter the options. The client is closed at the end of the test.
func Connect(t testing.TB, url string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	if !strings.Contains(url, "://") {
		url = "redis://" + url
	}
	o, err := redis.ParseURL(url)
	testkit.Must(t, err)
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.DisableIdentity = -1, 1, true, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = 2*time.Second, 5*time.Second, 5*time.Second
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// EachRedis runs a test on the shared real Redis. If there is none, it runs the test on two embedded ones: with
// functions and with scripts alone. CI does both: it runs each test with Go alone too.
func EachRedis(t *testing.T, test func(t *testing.T, c *redis.Client)) {
	t.Helper()
	real := HasRedis(t)
	t.Run("redis", func(t *testing.T) { test(t, Connect(t, Redis(t))) }) // skipped if there is none
	if !real {
		t.Run("embedded", func(t *testing.T) { test(t, Connect(t, EmbeddedRedis(t).Addr())) })
		t.Run("scripts", func(t *testing.T) { test(t, Connect(t, ScriptsRedis(t).Addr())) })
	}
}

// AnyRedis connects to the shared real Redis, or to an embedded one if there is no real one. It is for tests of code
// that calls the scripts. The tests of the scripts prove that both servers count the same.
func AnyRedis(t testing.TB) *redis.Client {
	t.Helper()
	if HasRedis(t) {
		return Connect(t, Redis(t))
	}
	return Connect(t, EmbeddedRedis(t).Addr())
}

// ConnectNATS returns a connection that reconnects at once after each interruption. It is closed at the end of the
// test.
func ConnectNATS(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond),
		nats.ReconnectJitter(0, 0)}, options...)...)
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// JetStream returns the JetStream of the server at url.
func JetStream(t testing.TB, url string) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(ConnectNATS(t, url))
	testkit.Must(t, err)
	return js
}

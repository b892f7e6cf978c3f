// Package natsconn makes every connection to NATS of this program. A connection comes back
// whatever the server answers (a wrong password, an unknown error), what is read from it is
// bounded, and its errors reach the log shortened and at a bounded rate. Read natsconn.go first,
// then conn.go, which bounds what is read, and report.go, which logs.
package natsconn

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Config of a connection. URL is required; zero values of the others are defaults.
type Config struct {
	// URL of a server, or several separated by commas: nats:// (the default scheme) or tls://.
	URL  string
	Name string      // by which the server's monitoring knows the connection
	TLS  *tls.Config // requires TLS; nil: TLS where the URL or the server asks for it
	// Wait returns a connection also where no server answers yet. It connects in the background.
	Wait bool
	// Status follows the connection; nil: nobody asks.
	Status *Status
	Log    *slog.Logger // default slog.Default()
}

// Status is what became of a connection. It never waits for the connection's own lock, which is
// held for as long as an attempt to connect takes.
type Status struct {
	connected   atomic.Bool
	disconnects atomic.Int64
	// OnClosed is called where the library has closed the connection for good, and not the
	// caller. Nothing known leads there. May be nil.
	OnClosed func(error)
}

// Connected reports whether the connection is up.
func (s *Status) Connected() bool { return s.connected.Load() }

// Disconnects is how often it was lost.
func (s *Status) Disconnects() int64 { return s.disconnects.Load() }

// Durations of a connection. A server that is silent for two pings is given up.
const (
	dialTimeout   = 2 * time.Second
	flushTimeout  = 5 * time.Second
	pingEvery     = 10 * time.Second
	reconnectWait = 250 * time.Millisecond
	jitter        = 100 * time.Millisecond
)

// Connect opens a connection. Options that are given replace those of this package.
func Connect(c Config, more ...nats.Option) (*nats.Conn, error) {
	d, err := newDialer(c)
	if err != nil {
		return nil, err
	}
	r := newReporter(cmp.Or(c.Log, slog.Default()), cmp.Or(c.Status, &Status{}))
	list := []nats.Option{
		nats.Name(c.Name), nats.RetryOnFailedConnect(c.Wait), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.SetCustomDialer(d), nats.SkipHostLookup(), // the dialer looks names up, and verifies them
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(jitter, jitter),
		nats.PingInterval(pingEvery), nats.FlusherTimeout(flushTimeout),
		nats.NoCallbacksAfterClientClose(), nats.ConnectHandler(r.connected), nats.ReconnectHandler(r.reconnected),
		nats.DisconnectErrHandler(r.disconnected), nats.ReconnectErrHandler(r.refused), nats.ErrorHandler(r.failed),
		nats.ClosedHandler(r.closed),
	}
	if c.TLS != nil {
		list = append(list, nats.Secure(c.TLS))
	}
	nc, err := nats.Connect(c.URL, append(list, more...)...)
	if err != nil {
		return nil, shorten(err)
	}
	return nc, nil
}

// servers gives the URLs of a list of servers.
func servers(list string) ([]*url.URL, error) {
	var out []*url.URL
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil {
			return nil, err // the caller shows none of it: see redact.Error
		}
		if u.Scheme != "nats" && u.Scheme != "tls" {
			switch u.Scheme {
			case "http", "https", "ws", "wss", "redis", "rediss":
				return nil, fmt.Errorf("the scheme of a NATS URL is %q, expected nats or tls", u.Scheme)
			}
			// A password can stand before "://" by a slip.
			return nil, errors.New("the scheme of a NATS URL is unknown, expected nats or tls")
		}
		if u.Host == "" {
			return nil, errors.New("a NATS URL has no host")
		}
		out = append(out, u)
	}
	return out, nil
}

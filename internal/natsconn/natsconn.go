// Package natsconn makes every connection to NATS of this program. A connection is restored whatever the server
// answers (a wrong password, an unknown error). The data that is read from the server is bounded, and its errors are
// logged shortened and at a bounded rate. Read natsconn.go first, then conn.go, which bounds the reading, and
// report.go, which logs.
package natsconn

import (
	"cmp"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Config of a connection. URL is required; zero values of the others are defaults.
type Config struct {
	// URL of a server, or several separated by commas: nats:// (the default scheme) or tls://.
	URL  string
	Name string      // name of the connection in the server's monitoring
	TLS  *tls.Config // requires TLS; nil: TLS if the URL or the server requires it
	// Wait makes Connect return a connection even if no server answers yet. It connects in the background.
	Wait bool
	// Status follows the connection; nil: not followed.
	Status *Status
	Log    *slog.Logger // default slog.Default()
}

// Status is the state of a connection. Reading it never waits for the lock of the connection, which is held for as
// long as an attempt to connect takes.
type Status struct {
	connected   atomic.Bool
	disconnects atomic.Int64
	// OnClosed is called if the library, and not the caller, has closed the connection forever. No known case leads
	// to this. May be nil.
	OnClosed func(error)
}

// Connected reports whether the connection is up.
func (s *Status) Connected() bool { return s.connected.Load() }

// Disconnects is how often the connection was lost.
func (s *Status) Disconnects() int64 { return s.disconnects.Load() }

// Durations of a connection. A server that does not answer two pings is given up.
const (
	dialTimeout   = 2 * time.Second
	flushTimeout  = 5 * time.Second
	pingEvery     = 10 * time.Second
	reconnectWait = 250 * time.Millisecond
	jitter        = 100 * time.Millisecond
)

// Connect opens a connection. The given options replace those of this package.
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

// errURL quotes nothing of the URL, which can contain a password.
var errURL = errors.New("expected nats://HOST:PORT or tls://HOST:PORT")

// Servers returns the URLs of a list of servers. Its error quotes nothing of the list.
func Servers(list string) ([]*url.URL, error) {
	var out []*url.URL
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(one)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || !isAddress(u) {
			return nil, errURL
		}
		out = append(out, u)
	}
	return out, nil
}

// isAddress reports whether a URL has only a user, a host and a port. A part of a password that is not escaped looks
// like a host, a path, a query or a fragment.
func isAddress(u *url.URL) bool {
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "4222"), 10, 16)
	host := u.Hostname()
	return err == nil && port > 0 && host != "" && !strings.ContainsAny(host, "; ") &&
		(u.Host[0] == '[' || !strings.Contains(host, ":")) &&
		strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}

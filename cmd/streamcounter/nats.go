package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/redact"
)

var subjectToken = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// ownInbox has replies sent to _INBOX.<user>, where the URL names a user, so
// that permissions can keep each from what others are sent; deploy/nats-permissions.conf
// does. It lies within _INBOX.>, which is what others allow. A user without a
// password is a token (nats://TOKEN@HOST), and subjects are no place for one.
func ownInbox(target string) nats.Option {
	first, _, _ := strings.Cut(target, ",")
	u, err := url.Parse(first)
	if err != nil || u.User == nil {
		return func(*nats.Options) error { return nil }
	}
	if password, _ := u.User.Password(); password == "" || !subjectToken.MatchString(u.User.Username()) {
		return func(*nats.Options) error { return nil }
	}
	return nats.CustomInboxPrefix("_INBOX." + u.User.Username())
}

// connectNATS connects with what proves who we are and who the server is, read
// from files: a credentials file or a seed, and TLS. Files are read again at
// each connection. Every command connects by it.
func connectNATS(c natsConfig, conn natsconn.Config, more ...nats.Option) (*nats.Conn, error) {
	list := append([]nats.Option{ownInbox(conn.URL)}, more...)
	if path := c.Creds; path != "" {
		list = append(list, nats.UserCredentials(path))
		if _, err := os.Stat(path); err != nil { // or the server would only say "authorization violation"
			return nil, blame("nats-creds", err)
		}
	}
	if path := c.NKey; path != "" {
		seed, err := nats.NkeyOptionFromSeed(path)
		if err != nil {
			return nil, blame("nats-nkey", fmt.Errorf("%s: %w", path, err))
		}
		list = append(list, seed)
	}
	if c.TLS.given() {
		conn.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if err := c.TLS.apply(conn.TLS); err != nil {
			return nil, err
		}
	}
	nc, err := natsconn.Connect(conn, list...)
	if err != nil || !nc.IsConnected() {
		if foreign := noNATS(conn.URL); foreign != nil {
			if nc != nil {
				nc.Close()
			}
			return nil, foreign
		}
	}
	return nc, err
}

// noAnswerOfNATS is the error of a command that needs NATS at once.
func noAnswerOfNATS(target string, err error) error {
	return blame("nats", fmt.Errorf("no NATS answers at %s: %w%s", redact.URL(target), redact.Error(err),
		besideDev("nats", target)))
}

// natsSchemes refuses a URL of another kind of server, which the NATS library would try for ever.
func natsSchemes(target string) error {
	for one := range strings.SplitSeq(target, ",") {
		scheme, _, found := strings.Cut(strings.TrimSpace(one), "://")
		if found && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			return fmt.Errorf("%s: expected nats://HOST:PORT, tls://, ws:// or wss://", redact.URL(target))
		}
	}
	return nil
}

// openNATS connects, embedded or not. A NATS that is not there yet is waited
// for in the background: transitions wait in the outbox meanwhile.
func (n *node) openNATS(context.Context) error {
	n.natsURL = n.config.NATS.URL
	port, embedded, err := embeddedPort(n.natsURL, 4222)
	if err != nil {
		return blame("nats", err)
	}
	if embedded {
		url, stop, err := startNATS(port, n.config.NATS.Store, n.log)
		if err != nil {
			return err
		}
		n.atStop(stop)
		n.natsURL = url
	}
	n.nats = &natsconn.Status{OnClosed: func(err error) { n.natsClosed <- err }}
	natsMetrics(n.registry, n.nats)
	n.nc, err = connectNATS(n.config.NATS, natsconn.Config{URL: n.natsURL, Name: "streamcounter", Wait: true,
		Status: n.nats, Log: n.log}, nats.ReconnectBufSize(-1)) // what is published meanwhile fails at once
	if err != nil {
		return blame("nats", fmt.Errorf("%s: %w", redact.URL(n.natsURL), redact.Error(err)))
	}
	n.atStop(n.nc.Close)
	if !n.nc.IsConnected() {
		n.log.Warn("NATS does not answer yet, trying again", "url", redact.URL(n.natsURL))
	}
	return nil
}

// natsMetrics tell whether NATS is there. They do not wait for the connection.
func natsMetrics(reg prometheus.Registerer, s *natsconn.Status) {
	f := promauto.With(reg)
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: "streamcounter_nats_connected",
		Help: "1 while this process is connected to NATS, else 0."}, func() float64 {
		if s.Connected() {
			return 1
		}
		return 0
	})
	f.NewCounterFunc(prometheus.CounterOpts{Name: "streamcounter_nats_disconnects_total",
		Help: "How often the connection to NATS was lost."}, func() float64 { return float64(s.Disconnects()) })
}

// openOptionalNATS connects where --nats says to: serve answers checks without it.
func (n *node) openOptionalNATS(ctx context.Context) error {
	if n.config.NATS.URL == "" {
		return nil
	}
	if _, embedded, _ := embeddedPort(n.config.NATS.URL, 0); embedded {
		return blame("nats", errors.New("expected the URL of the NATS that workers publish to; only dev embeds one"))
	}
	return n.openNATS(ctx)
}

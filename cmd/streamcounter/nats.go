package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

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
// each connection.
func connectNATS(c natsConfig, target string, more ...nats.Option) (*nats.Conn, error) {
	list := append([]nats.Option{ownInbox(target)}, more...)
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
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if err := c.TLS.apply(config); err != nil {
			return nil, err
		}
		list = append(list, nats.Secure(config))
	}
	nc, err := nats.Connect(target, list...)
	if err != nil || !nc.IsConnected() {
		if foreign := noNATS(target); foreign != nil {
			if nc != nil {
				nc.Close()
			}
			return nil, foreign
		}
	}
	return nc, err
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
	n.nc, err = dialNATS(n.config.NATS, n.natsURL, n.log)
	if err != nil {
		return blame("nats", err)
	}
	n.atStop(n.nc.Close)
	return nil
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

func dialNATS(c natsConfig, url string, log *slog.Logger) (*nats.Conn, error) {
	nc, err := connectNATS(c, url, nats.Name("streamcounter"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("NATS is disconnected, trying again", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			log.Info("NATS is connected again", "url",
				redact.URL(c.ConnectedUrl()))
		}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", redact.URL(url), redact.Error(err))
	}
	if !nc.IsConnected() {
		log.Warn("NATS does not answer yet, trying again", "url", redact.URL(url))
	}
	return nc, nil
}

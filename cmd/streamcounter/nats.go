package main

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"
)

var plainToken = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// ownInbox has replies sent to _INBOX.<user>, where the URL names a user, so
// that permissions can keep each from what others are sent; deploy/nats-permissions.conf
// does. It lies within _INBOX.>, which is what others allow.
func ownInbox(target string) nats.Option {
	first, _, _ := strings.Cut(target, ",")
	u, err := url.Parse(first)
	if err != nil || !plainToken.MatchString(u.User.Username()) {
		return func(*nats.Options) error { return nil }
	}
	return nats.CustomInboxPrefix("_INBOX." + u.User.Username())
}

// connectNATS connects with what proves who we are and who the server is, read
// from files: a credentials file or a seed, and TLS. Files are read again at
// each connection.
func connectNATS(o *options, target string, more ...nats.Option) (*nats.Conn, error) {
	list := append([]nats.Option{ownInbox(target)}, more...)
	if path := o.text("nats-creds"); path != "" {
		list = append(list, nats.UserCredentials(path))
		if _, err := os.Stat(path); err != nil { // or the server would only say "authorization violation"
			return nil, blame("nats-creds", err)
		}
	}
	if path := o.text("nats-nkey"); path != "" {
		seed, err := nats.NkeyOptionFromSeed(path)
		if err != nil {
			return nil, blame("nats-nkey", fmt.Errorf("%s: %w", path, err))
		}
		list = append(list, seed)
	}
	if files := o.clientFiles("nats"); files.given() {
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if err := files.apply(config); err != nil {
			return nil, err
		}
		list = append(list, nats.Secure(config))
	}
	return nats.Connect(target, list...)
}

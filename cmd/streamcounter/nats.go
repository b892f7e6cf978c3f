package main

import (
	"net/url"
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

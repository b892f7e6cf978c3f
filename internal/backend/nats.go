package backend

import (
	"crypto/tls"
	"fmt"
	"os"
	"regexp"

	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

var subjectToken = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// ownInbox makes replies go to _INBOX.<user> if the URL names a user, so that permissions can stop one user from
// reading the replies of another; deploy/nats-permissions.conf does this. The subject is within _INBOX.>, which other
// permissions usually allow. A user without a password is a token (nats://TOKEN@HOST), and a token must not be in a
// subject.
func ownInbox(target string) nats.Option {
	list, _ := natsconn.Servers(target) // Connect returns its error
	for _, u := range list {
		if password, _ := u.User.Password(); password != "" && subjectToken.MatchString(u.User.Username()) {
			return nats.CustomInboxPrefix("_INBOX." + u.User.Username())
		}
	}
	return func(*nats.Options) error { return nil }
}

// ConnectNATS connects with the credentials and the TLS configuration of the settings, which are read from files: a
// credentials file or a seed, and TLS files. The files are read again at each connection. Every command uses it.
func ConnectNATS(c settings.NATS, conn natsconn.Config, more ...nats.Option) (*nats.Conn, error) {
	list := append([]nats.Option{ownInbox(conn.URL)}, more...)
	if path := c.Creds; path != "" {
		list = append(list, nats.UserCredentials(path))
		if _, err := os.Stat(path); err != nil { // otherwise the server would only say "authorization violation"
			return nil, settings.Blame("nats-creds", err)
		}
	}
	if path := c.NKey; path != "" {
		seed, err := nats.NkeyOptionFromSeed(path)
		if err != nil {
			return nil, settings.Blame("nats-nkey", fmt.Errorf("%s: %w", path, err))
		}
		list = append(list, seed)
	}
	if c.TLS.Given() {
		conn.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		if err := c.TLS.Apply(conn.TLS); err != nil {
			return nil, err
		}
	}
	nc, err := natsconn.Connect(conn, list...)
	if err != nil || !nc.IsConnected() {
		if foreign := checkIsNATS(conn.URL); foreign != nil {
			if nc != nil {
				nc.Close()
			}
			return nil, foreign
		}
	}
	return nc, err
}

// NATSUnreachable is the error of a command that needs NATS at once, after ConnectNATS failed with err.
func NATSUnreachable(target string, err error) error {
	return settings.Blame("nats", fmt.Errorf("no NATS answers at %s: %w%s", redact.URL(target), redact.Error(err),
		devHint("nats", target)))
}

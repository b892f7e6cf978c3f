package natsconn

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

// dialer opens connections that bound what is read, for the library (nats.CustomDialer). It does TLS itself: the
// library would put TLS on top of the returned connection, and the protocol could not be read here.
type dialer struct {
	net     net.Dialer
	servers []*url.URL
	secrets *strings.Replacer
	tls     *tls.Config
	secure  bool // TLS is required

	mu         sync.Mutex
	discovered map[string]struct{} // addresses of servers that other servers have named
}

func newDialer(c Config) (*dialer, error) {
	list, err := Servers(c.URL)
	if err != nil {
		return nil, err
	}
	var secrets []string
	for _, u := range list {
		secret, hasPassword := u.User.Password()
		if !hasPassword {
			secret = u.User.Username() // a name without a password is a token
		}
		if len(secret) >= shortestSecret {
			secrets = append(secrets, secret, masked)
		}
	}
	return &dialer{net: net.Dialer{Timeout: dialTimeout}, servers: list, secrets: strings.NewReplacer(secrets...),
		tls: cmp.Or(c.TLS, &tls.Config{MinVersion: tls.VersionTLS12}), discovered: map[string]struct{}{},
		secure: c.TLS != nil || slices.ContainsFunc(list, func(u *url.URL) bool { return u.Scheme == "tls" })}, nil
}

// Dial is called by the library, one call at a time.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	c, err := d.net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, dialer: d, host: d.nameOf(address), in: bufio.NewReaderSize(c, maxLine),
		infos:  rate.NewLimiter(infosPerSecond, infosAtOnce),
		errors: rate.NewLimiter(errorsPerSecond, errorsAtOnce)}, nil
}

// SkipTLSHandshake tells the library that the connection does the handshake.
func (*dialer) SkipTLSHandshake() bool { return true }

// nameOf returns the name that a server's certificate must have. For a server that another server named by its IP
// address, it is the name of the configured server, as in the library.
func (d *dialer) nameOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	given := func(u *url.URL) bool { return u.Hostname() == host }
	if net.ParseIP(host) == nil || slices.ContainsFunc(d.servers, given) {
		return host
	}
	for _, u := range d.servers {
		if net.ParseIP(u.Hostname()) == nil {
			return u.Hostname()
		}
	}
	return host
}

// discover records servers that a server has named, and reports whether the library may have them. The library
// remembers each of them forever, and tries all of them before it returns to the configured ones.
func (d *dialer) discover(addresses []string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(addresses) > maxNamed {
		return false
	}
	for _, a := range addresses {
		if _, known := d.discovered[a]; !known && len(d.discovered) == maxDiscovered {
			return false
		}
		d.discovered[a] = struct{}{}
	}
	return true
}

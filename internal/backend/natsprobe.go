package backend

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// probeTimeout bounds each step of finding out which server answers instead of a NATS server.
const probeTimeout = 500 * time.Millisecond

// noNATS returns an error if another kind of server answers at one of the URLs of --nats, and names that kind;
// otherwise nil. A NATS server sends first; to other servers noNATS sends a request. It checks only URLs without TLS
// from the start.
func noNATS(target string) error {
	for one := range strings.SplitSeq(target, ",") {
		if !strings.Contains(one, "://") {
			one = "nats://" + one
		}
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Scheme != "nats" {
			continue
		}
		addr := u.Host
		if u.Port() == "" {
			addr = net.JoinHostPort(u.Hostname(), "4222")
		}
		if said := firstWords(addr); len(said) > 0 && !bytes.HasPrefix(said, []byte("INFO ")) {
			return fmt.Errorf("%s is not a NATS server: %s", addr, kindOfServer(said))
		}
	}
	return nil
}

// firstWords returns the first bytes that a server sends, if necessary after a line that Redis and HTTP servers
// answer. It returns nothing if the server sends nothing or cannot be reached.
func firstWords(addr string) []byte {
	c, err := net.DialTimeout("tcp", addr, probeTimeout)
	if err != nil {
		return nil
	}
	defer c.Close()
	said := make([]byte, 64)
	for _, ask := range []string{"", "*1\r\n$4\r\nPING\r\n\r\n"} {
		if c.SetDeadline(time.Now().Add(probeTimeout)) != nil {
			return nil
		}
		if _, err := c.Write([]byte(ask)); err != nil {
			return nil
		}
		n, err := c.Read(said)
		if n > 0 {
			return said[:n]
		}
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			return nil
		}
	}
	return nil
}

var (
	errPlain = errors.New("it answers without TLS: give redis:// instead of rediss://")
	errTLS   = errors.New("it answers with TLS: give rediss:// instead of redis://, and --redis-ca if needed")
)

// otherTLS returns an error if a Redis that does not answer uses TLS and the client does not, or the other way round.
func otherTLS(o *redis.UniversalOptions) error {
	if len(o.Addrs) == 0 || o.MasterName != "" { // the addresses of sentinels
		return nil
	}
	if o.TLSConfig != nil {
		said := firstWords(o.Addrs[0])
		if bytes.HasPrefix(said, []byte("+PONG")) || bytes.HasPrefix(said, []byte("-")) {
			return errPlain
		}
		return nil
	}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: probeTimeout}, "tcp", o.Addrs[0], &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) // nothing is sent
	if c != nil {
		_ = c.Close()
	}
	said, ok := errors.AsType[*net.OpError](err)
	if err == nil || ok && said.Op == "remote error" { // it wants a certificate
		return errTLS
	}
	return nil
}

func kindOfServer(said []byte) string {
	line, _, _ := bytes.Cut(said, []byte("\r\n"))
	switch {
	case bytes.HasPrefix(said, []byte("+PONG")), bytes.HasPrefix(said, []byte("-NOAUTH")),
		bytes.HasPrefix(said, []byte("-DENIED")), bytes.HasPrefix(said, []byte("-ERR")):
		return fmt.Sprintf("a Redis server answers (%q)", line)
	case bytes.HasPrefix(said, []byte("HTTP/")):
		return fmt.Sprintf("an HTTP server answers (%q)", line)
	}
	return fmt.Sprintf("it says %q", line)
}

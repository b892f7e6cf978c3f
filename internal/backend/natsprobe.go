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

// checkIsNATS returns an error if another kind of server answers at one of the URLs of --nats, and names that kind;
// otherwise nil. A NATS server sends first; checkIsNATS sends a request to a server that does not. It checks only URLs
// without TLS from the start.
func checkIsNATS(target string) error {
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
		if reply := firstBytes(addr); len(reply) > 0 && !bytes.HasPrefix(reply, []byte("INFO ")) {
			return fmt.Errorf("%s is not a NATS server: %s", addr, kindOfServer(reply))
		}
	}
	return nil
}

// firstBytes returns the first bytes that a server sends. If it does not send first, firstBytes sends a line that Redis
// and HTTP servers answer. It returns nothing if the server sends nothing or cannot be reached.
func firstBytes(addr string) []byte {
	c, err := net.DialTimeout("tcp", addr, probeTimeout)
	if err != nil {
		return nil
	}
	defer c.Close()
	reply := make([]byte, 64)
	for _, ask := range []string{"", "*1\r\n$4\r\nPING\r\n\r\n"} {
		if c.SetDeadline(time.Now().Add(probeTimeout)) != nil {
			return nil
		}
		if _, err := c.Write([]byte(ask)); err != nil {
			return nil
		}
		n, err := c.Read(reply)
		if n > 0 {
			return reply[:n]
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

// tlsMismatch returns an error if a Redis that does not answer uses TLS and the client does not, or the reverse.
func tlsMismatch(o *redis.UniversalOptions) error {
	if len(o.Addrs) == 0 || o.MasterName != "" { // the addresses of sentinels
		return nil
	}
	if o.TLSConfig != nil {
		reply := firstBytes(o.Addrs[0])
		if bytes.HasPrefix(reply, []byte("+PONG")) || bytes.HasPrefix(reply, []byte("-")) {
			return errPlain
		}
		return nil
	}
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: probeTimeout}, "tcp", o.Addrs[0], &tls.Config{
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) // nothing is sent
	if c != nil {
		_ = c.Close()
	}
	opErr, ok := errors.AsType[*net.OpError](err)
	if err == nil || ok && opErr.Op == "remote error" { // it requires a certificate
		return errTLS
	}
	return nil
}

func kindOfServer(reply []byte) string {
	line, _, _ := bytes.Cut(reply, []byte("\r\n"))
	switch {
	case bytes.HasPrefix(reply, []byte("+PONG")), bytes.HasPrefix(reply, []byte("-NOAUTH")),
		bytes.HasPrefix(reply, []byte("-DENIED")), bytes.HasPrefix(reply, []byte("-ERR")):
		return fmt.Sprintf("a Redis server answers (%q)", line)
	case bytes.HasPrefix(reply, []byte("HTTP/")):
		return fmt.Sprintf("an HTTP server answers (%q)", line)
	}
	return fmt.Sprintf("it sends %q", line)
}

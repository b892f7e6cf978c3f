package natsconn

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

// Bounds of what is read from a server.
const (
	// maxLine bounds a protocol line. The longest is an INFO that names the servers of a large cluster.
	maxLine = 64 << 10
	// maxPayload is the highest max_payload that a nats-server accepts in its configuration.
	maxPayload     = 64 << 20
	defaultPayload = 1 << 20 // if a server names none
	// maxHeader bounds the headers of a message, in bytes: each header line costs the library many times its length.
	// Our headers have some hundred bytes.
	maxHeader = 64 << 10
	// maxNamed bounds the servers that a server names besides itself. maxDiscovered bounds all that were named since
	// the start. Beyond these bounds, only the configured servers are used.
	maxNamed, maxDiscovered = 32, 10_000
	// A server sends INFO when its cluster changes, and -ERR for each publish that it refuses.
	infosPerSecond, infosAtOnce   = 1, 100
	errorsPerSecond, errorsAtOnce = 100, 1000
)

// errTooMuch ends a connection whose server sends more than a NATS server would.
var errTooMuch = errors.New("NATS sends too much")

// errProtocol ends a connection whose server does not speak the protocol of NATS.
var errProtocol = errors.New("NATS does not speak its protocol")

// conn is a connection to NATS that bounds what is read. It reads and checks each line before the library sees it. So
// it can also drop an error for which the library would close the connection. As in the library, one goroutine reads
// and one writes.
type conn struct {
	net.Conn // TCP; after the handshake, TLS
	dialer   *dialer
	host     string // name that the certificate must have
	in       *bufio.Reader

	line    []byte // checked, but not read by the library yet
	payload int64  // bytes of a message that are still to come
	ending  bool   // the CR LF after the payload is still to come
	failed  error

	informed bool // the first INFO has come
	ready    bool // the first PONG has come: the server has accepted the connection
	startTLS bool // the next write begins with the TLS handshake
	limit    int64
	infos    *rate.Limiter
	errors   *rate.Limiter
}

// Write does the TLS handshake before the first byte after INFO.
func (c *conn) Write(p []byte) (int, error) {
	if c.startTLS {
		c.startTLS = false
		if err := c.handshake(); err != nil {
			return 0, fmt.Errorf("%w: %w", nats.ErrTLS, err)
		}
	}
	return c.Conn.Write(p)
}

func (c *conn) handshake() error {
	if c.in.Buffered() > 0 {
		return errors.New("the server sent data before the handshake")
	}
	config := c.dialer.tls.Clone()
	if config.ServerName == "" {
		config.ServerName = c.host
	}
	t := tls.Client(c.Conn, config)
	if err := t.Handshake(); err != nil {
		return err
	}
	c.Conn = t
	c.in.Reset(t)
	return nil
}

// Read returns no byte of a refused line, nor any byte after it. It waits only until one byte can be returned.
func (c *conn) Read(p []byte) (n int, err error) {
	for n < len(p) && c.failed == nil && (n == 0 || c.available()) {
		var k int
		switch {
		case len(c.line) > 0:
			k = copy(p[n:], c.line)
			c.line = c.line[k:]
		case c.payload > 0:
			k, err = c.in.Read(p[n:min(int64(len(p)), int64(n)+c.payload)])
			c.payload -= int64(k)
			c.ending = c.payload == 0
		default:
			err = c.next()
		}
		n += k
		if err != nil {
			c.failed = err
		}
	}
	if n > 0 {
		return n, nil
	}
	if errors.Is(c.failed, errTooMuch) || errors.Is(c.failed, errProtocol) {
		_ = c.Close() // the error is for the library, which closes it too
	}
	return 0, c.failed
}

// available reports whether something can be read without waiting.
func (c *conn) available() bool {
	if len(c.line) > 0 {
		return true
	}
	buffered := c.in.Buffered()
	if c.payload > 0 || buffered == 0 {
		return buffered > 0
	}
	have, _ := c.in.Peek(buffered)
	return bytes.IndexByte(have, '\n') >= 0
}

// next reads a line and checks it. If the line is to be dropped, c.line stays empty.
func (c *conn) next() error {
	line, err := c.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return fmt.Errorf("%w: a line of over %d bytes", errTooMuch, maxLine)
	}
	if err != nil {
		return err
	}
	// The library drops a CR in some places and keeps it in others.
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.IndexByte(text, '\r') >= 0 {
		return fmt.Errorf("%w: a line that does not end in CR LF", errProtocol)
	}
	if c.ending {
		c.ending = false
		if len(text) > 0 {
			return fmt.Errorf("%w: a message that is longer than announced", errProtocol)
		}
		c.line = line
		return nil
	}
	end := bytes.IndexAny(text, " \t")
	if end < 0 {
		end = len(text)
	}
	rest := bytes.Trim(text[end:], " \t")
	c.line = line
	switch op := string(text[:end]); op {
	case "MSG":
		return c.message(rest, 3, false)
	case "HMSG":
		return c.message(rest, 4, true)
	case "INFO":
		return c.info(rest)
	case "-ERR":
		return c.refusal(string(rest))
	case "PONG":
		c.ready = true
		return nil
	case "PING", "+OK":
		return nil
	default:
		return fmt.Errorf("%w: it says %s", errProtocol, c.dialer.show(string(text), shownText))
	}
}

// message processes the first line of a message. The reply subject is optional.
func (c *conn) message(args []byte, fields int, headers bool) error {
	list := bytes.FieldsFunc(args, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(list) != fields && len(list) != fields+1 {
		return fmt.Errorf("%w: a message with %d fields", errProtocol, len(list))
	}
	size, err := number(list[len(list)-1])
	if err != nil {
		return err
	}
	if size > c.limit {
		return fmt.Errorf("%w: a message of %d bytes, expected at most %d", errTooMuch, size, c.limit)
	}
	if headers {
		header, err := number(list[len(list)-2])
		if err != nil {
			return err
		}
		if header > min(size, maxHeader) {
			return fmt.Errorf("%w: headers of %d bytes in a message of %d, expected at most %d", errTooMuch, header,
				size, maxHeader)
		}
	}
	c.payload, c.ending = size, true
	return nil
}

func number(text []byte) (int64, error) {
	n, err := strconv.ParseUint(string(text), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%w: the length of a message is %s", errTooMuch, strconv.Quote(cut(string(text), 30)))
	}
	return int64(n), nil
}

func (c *conn) info(text []byte) error {
	var info struct {
		MaxPayload  int64    `json:"max_payload"`
		ConnectURLs []string `json:"connect_urls"`
		TLSRequired bool     `json:"tls_required"`
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return fmt.Errorf("%w: INFO is not JSON", errProtocol)
	}
	if c.informed && !c.infos.Allow() {
		return fmt.Errorf("%w: INFO %d times within moments", errTooMuch, infosAtOnce)
	}
	if !c.informed {
		c.informed = true
		c.startTLS = c.dialer.secure || info.TLSRequired
	}
	limit := info.MaxPayload
	if limit <= 0 {
		limit = defaultPayload
	}
	// JetStream's own answers may be longer: they contain a message in base64, and JetStream's headers.
	c.limit = 2*min(limit, maxPayload) + maxLine
	if c.dialer.discover(info.ConnectURLs) {
		return nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%w: INFO is not an object", errProtocol)
	}
	delete(all, "connect_urls")
	without, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("%w: INFO is not JSON", errProtocol)
	}
	c.line = fmt.Appendf(nil, "INFO %s\r\n", without)
	return nil
}

// refusal processes an error of the server: it shortens the text and hides secrets. After most errors the library would
// never connect again. Here, such an error only ends this connection, and the library connects again.
func (c *conn) refusal(text string) error {
	said := strings.ToLower(strings.Trim(text, " '"))
	staysOpen := strings.HasPrefix(said, nats.PERMISSIONS_ERR) || strings.HasPrefix(said, nats.MAX_SUBSCRIPTIONS_ERR)
	if staysOpen && !c.errors.Allow() {
		c.line = nil
		return nil
	}
	most := shownText
	if staysOpen {
		most = shownSubject // the library finds the subscription by the subject
	}
	text = c.dialer.show(text, most)
	if c.ready && !staysOpen {
		return fmt.Errorf("NATS says %s", text)
	}
	c.line = []byte("-ERR " + text + "\r\n")
	return nil
}

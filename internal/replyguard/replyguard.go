// Package replyguard bounds how much memory a Redis server can make its client allocate. go-redis allocates memory
// for as many elements and bytes as a reply announces, before any of them has arrived: "*1000000000" costs 16 GB. A
// Conn reads the headers of replies as they pass (RESP2 and RESP3), and ends the connection at a reply that announces
// more than Redis would send us. Read replyguard.go; there is no other file.
package replyguard

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Bounds of one reply.
const (
	// maxElements bounds the elements that are announced and have not come, in all levels of a reply. Our largest
	// replies have some tens of thousands.
	maxElements = 1 << 18
	// MaxBytes bounds a reply, in bytes; a string counts when it is announced. Redis accepts no string above this
	// (proto-max-bulk-len).
	MaxBytes = 512 << 20
	// maxDepth bounds lists within lists: the client reads them recursively, and its stack grows with the depth. Our
	// deepest reply, of events read from streams, has a depth of five.
	maxDepth = 32
	// maxLine bounds a line: a status, an error, a number.
	maxLine = 1 << 20
)

// ErrTooLarge is the error of a connection whose reply is too large. The connection is ended.
var ErrTooLarge = errors.New("the reply of Redis is too large")

// Conn is a connection to Redis whose replies are bounded.
type Conn struct {
	net.Conn
	s      scanner
	failed error
}

// New returns a connection that bounds the replies that are read from c, which may be a TLS connection.
func New(c net.Conn) net.Conn {
	guarded := &Conn{Conn: c}
	if raw, ok := c.(syscall.Conn); ok {
		return rawConn{guarded, raw}
	}
	return guarded
}

// rawConn gives access to the socket, with which a pool finds out whether the other end has closed the connection.
type rawConn struct {
	*Conn
	raw syscall.Conn
}

func (c rawConn) SyscallConn() (syscall.RawConn, error) { return c.raw.SyscallConn() }

// Read returns no byte of a piece that is refused, and an error from then on.
func (c *Conn) Read(p []byte) (int, error) {
	if c.failed != nil {
		return 0, c.failed
	}
	n, err := c.Conn.Read(p)
	if c.failed = c.s.scan(p[:n]); c.failed != nil {
		return 0, errors.Join(c.failed, c.Close())
	}
	return n, err
}

// scanner follows replies through pieces of any size. It checks only the announced sizes; the client finds out
// whether a reply is valid.
type scanner struct {
	kind   byte  // first byte of the line; 0: at the beginning of a line
	number int64 // in the line, so far
	minus  bool
	line   int                 // bytes of the line so far
	skip   int64               // bytes of a string that are still to come, with its CR LF
	open   int64               // elements that are announced and have not come
	depth  int                 // lists that are not complete, each within the one before
	left   [maxDepth + 1]int64 // depth → elements of that list that have not come
	bytes  int64               // of the reply
}

func (s *scanner) scan(p []byte) error {
	for len(p) > 0 {
		if s.skip > 0 {
			n := min(s.skip, int64(len(p)))
			s.skip -= n
			p = p[n:]
			s.endOfReply()
			continue
		}
		b := p[0]
		p = p[1:]
		s.line++
		switch {
		case s.line > maxLine:
			return fmt.Errorf("%w: a line of over %d bytes", ErrTooLarge, maxLine)
		case s.kind == 0:
			s.kind, s.number, s.minus = b, 0, false
		case b == '\n':
			if err := s.header(); err != nil {
				return err
			}
		case b == '-' && s.line == 2:
			s.minus = true
		case b >= '0' && b <= '9' && s.number <= MaxBytes:
			s.number = s.number*10 + int64(b-'0')
		}
	}
	return nil
}

// header processes a complete line.
func (s *scanner) header() error {
	kind, n := s.kind, s.number
	s.bytes += int64(s.line)
	s.kind, s.line = 0, 0
	if kind != '|' { // attributes come before a value, and are no values
		s.open = max(s.open-1, 0)
		s.left[s.depth]--
	}
	if s.minus { // nil
		n = 0
	} else if kind == '$' || kind == '=' || kind == '!' {
		s.skip = n + 2
		s.bytes += s.skip
	}
	elements := int64(0)
	switch kind {
	case '*', '~', '>':
		elements = n
	case '%', '|':
		elements = 2 * n
	}
	if elements > 0 {
		if s.depth == maxDepth {
			return fmt.Errorf("%w: it has lists in lists, deeper than %d", ErrTooLarge, maxDepth)
		}
		s.depth++
		s.left[s.depth] = elements
	} else if kind != '|' { // a value is complete, and so are the lists of which it is the last element
		for s.depth > 0 && s.left[s.depth] <= 0 {
			s.depth--
		}
	}
	s.open += elements
	switch {
	case s.open > maxElements:
		return fmt.Errorf("%w: it announces %d elements, expected at most %d", ErrTooLarge, s.open, maxElements)
	case s.bytes > MaxBytes:
		return fmt.Errorf("%w: it announces %d bytes, expected at most %d", ErrTooLarge, s.bytes, MaxBytes)
	}
	s.endOfReply()
	return nil
}

func (s *scanner) endOfReply() {
	if s.open == 0 && s.skip == 0 {
		s.bytes = 0
	}
}

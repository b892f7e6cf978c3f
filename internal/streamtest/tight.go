package streamtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/replyguard"
)

// Tight is a change for Connect: a connection ends at a reply above 100 kB, as those of replyguard do at a larger one.
// The replies to a pipeline count as one.
func Tight(o *redis.Options) { limited(o, replyguard.ErrTooLarge) }

// Slow is like Tight, as if such a reply took longer than a call may.
func Slow(o *redis.Options) { limited(o, &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}) }

func limited(o *redis.Options, failure error) {
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		return &tight{Conn: c, failure: failure}, err
	}
}

type tight struct {
	net.Conn
	failure error
	got     int
}

func (c *tight) Write(p []byte) (int, error) {
	c.got = 0
	return c.Conn.Write(p)
}

func (c *tight) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.got += n; c.got > 100_000 {
		return 0, errors.Join(fmt.Errorf("%w: expected at most 100000 bytes", c.failure), c.Close())
	}
	return n, err
}

package client

import (
	"time"

	"github.com/streamcounter/streamcounter/internal/lease"
)

// Leases are for tests that move the clock: their timers, and how to end them as a killed process does.
func (c *Client) Leases() *lease.List { return c.leases.List }

// SetLeaseTimers lets a test run the timers of renewals.
func (c *Client) SetLeaseTimers(after func(time.Duration, func()) lease.Stopper) {
	c.leases.After = after
}

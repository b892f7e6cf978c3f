package client

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
)

// Policy answers a check if nobody else does.
type Policy int

// The policies.
const (
	// Allow admits.
	Allow Policy = iota + 1
	// Deny denies, and returns an error that wraps api.ErrUnavailable together with the answer.
	Deny
	// Local continues to count in this process, at the limit divided by Config.Instances.
	Local
)

func (p Policy) String() string {
	if p.valid() {
		return [...]string{"allow", "deny", "local"}[p-Allow]
	}
	return fmt.Sprintf("policy %d", int(p))
}

func (p Policy) valid() bool { return p >= Allow && p <= Local }

// Rule is what Local must know about a rule of the server: its name and its limits.
type Rule struct {
	Name   string
	Limits []Limit
}

// Limit is Units in any span of Per.
type Limit struct {
	Units int64
	Per   time.Duration
}

func (r Rule) validate() error {
	if r.Name == "" || len(r.Limits) == 0 {
		return fmt.Errorf("client: rule %q: expected a name and at least one limit", r.Name)
	}
	for _, l := range r.Limits {
		if l.Units < 1 || l.Per < time.Millisecond || l.Units > math.MaxInt64/2 {
			return fmt.Errorf("client: rule %q: limit %d per %s: expected at least 1 unit per 1ms", r.Name, l.Units,
				l.Per)
		}
	}
	return nil
}

// failed reports whether an error is a failure of the server, for the breaker: the server could not be reached or did
// not answer. A server that answers with an error works.
func failed(err error) bool {
	return errors.Is(err, api.ErrNotSent) || errors.Is(err, api.ErrOutcomeUnknown)
}

// unanswered reports whether the policy decides.
func unanswered(err error) bool {
	return errors.Is(err, api.ErrNoAnswer) || isRefusedCredentials(err)
}

func isBreaker(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// isRefusedCredentials reports whether the server refused our credentials. Waiting does not fix this, so the error is
// returned together with the policy's answer, whatever that is.
func isRefusedCredentials(err error) bool {
	return errors.Is(err, api.ErrUnauthenticated) || errors.Is(err, api.ErrForbidden)
}

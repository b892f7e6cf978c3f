package client

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/streamcounter/streamcounter/api"
)

// Policy answers a check where nobody else does.
type Policy int

// The policies.
const (
	// Allow admits.
	Allow Policy = iota + 1
	// Deny denies, and gives an error that wraps api.ErrUnavailable beside the answer.
	Deny
	// Local goes on counting in this process, at the limit divided by Config.Instances.
	Local
)

func (p Policy) String() string {
	switch p {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	case Local:
		return "local"
	}
	return fmt.Sprintf("policy %d", int(p))
}

func (p Policy) valid() bool { return p >= Allow && p <= Local }

// Rule is what Local has to know of a rule of the server's: its name and its limits.
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

// failed tells what speaks against the server, for the breaker: it could not be
// reached or did not answer. One that answers with an error is there.
func failed(err error) bool {
	return errors.Is(err, api.ErrNotSent) || errors.Is(err, api.ErrOutcomeUnknown)
}

// unanswered reports whether the policy decides.
func unanswered(err error) bool {
	return errors.Is(err, api.ErrNoAnswer) || isBreaker(err) || isRefusedCredentials(err)
}

func isBreaker(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// isRefusedCredentials: waiting does not fix it, so the error stands beside the
// policy's answer, whatever that is.
func isRefusedCredentials(err error) bool {
	return errors.Is(err, api.ErrUnauthenticated) || errors.Is(err, api.ErrForbidden)
}

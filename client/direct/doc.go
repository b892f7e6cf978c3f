// Package direct is a client.Checker that uses Redis itself, for Go services that share its network and want no
// server in between. It uses the rules of the servers and counts in the same keys. It never sends a check twice. The
// error of a check that failed wraps api.ErrNoAnswer, with api.ErrNotSent or api.ErrOutcomeUnknown, or with
// api.ErrUnavailable if Redis refused it. Put a client.Client around it for a deadline, a circuit breaker and a
// policy.
package direct

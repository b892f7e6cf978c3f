// Package direct is a client.Checker straight against Redis, for Go services that share
// its network and want no server in between. It takes the rules of the servers and
// counts in the same keys. It never sends a check twice; what failed wraps
// api.ErrNoAnswer, with api.ErrNotSent or api.ErrOutcomeUnknown. Put a client.Client
// around it for a deadline, a circuit breaker and a policy.
package direct

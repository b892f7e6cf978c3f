// Package counters counts keys under their plans, and answers whether they may be charged. [Redis] is the counter that
// all processes share, [Local] that of this process. Reservations and lent units are of the shared one.
//
// A counter neither waits nor retries. If Redis does not answer, a check has no verdict, and it may have been charged.
// Package client/direct adds deadlines, batches and a circuit breaker for services; package check does for servers.
package counters

// Package counters counts keys under their plans, and answers whether they may be charged. [Redis] is the counter that
// all processes share, [Local] is the counter of this process. Only the shared counter has reservations and lent units.
//
// A counter does not wait or retry. If Redis does not answer, a check has no verdict, and it may have been charged.
// Package client/direct adds deadlines, batches and a circuit breaker for services. Package check adds them for
// servers.
package counters

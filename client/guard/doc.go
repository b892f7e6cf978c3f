// Package guard finds out which keys are throttled without a call to a server. A Guard subscribes to throttle
// decisions on NATS: first a snapshot, then each change. A lookup takes some 100 ns at a million throttled keys,
// takes no lock, and allocates nothing. It needs nothing but a NATS connection.
package guard

// Package guard knows which keys are throttled, without asking anybody. A Guard
// subscribes to throttle decisions on NATS: first a snapshot, then each change. A
// look takes some 100 ns at a million throttled keys, takes no lock, and
// allocates nothing. It needs nothing but a NATS connection.
package guard

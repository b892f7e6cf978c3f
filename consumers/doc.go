// Package consumers owns what happens to a stored event: it is read and folded
// (worker.go, batch.go), taken over from a worker that died (reclaimer.go), or
// kept as a dead letter when it cannot be counted (deadletter.go); and to what
// follows from it: levels that end (sweeper.go) and transitions that wait to be
// published (relay.go, lease.go). A partition with foreign keys is quarantined
// (quarantine.go). pool.go runs all of them and stops them in order. None holds state that a
// crash could lose.
//
//	events ──read──▶ pending ──fold: XACK · count · levels──▶ counted
//	                    │  ▲                   │
//	       worker dies  │  │ claim after       └─▶ outbox ──relay: publish, PubAck, XDEL──▶ NATS
//	                    ▼  │ min-idle                ▲
//	                  orphaned                       └── sweep: levels that end
//	                    └──── cannot be counted ──XACK · XADD──▶ dead
//
// Read worker.go next.
package consumers

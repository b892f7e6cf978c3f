// Package consumers counts stored events and publishes what follows, for programs that
// want a worker inside their own process in place of `streamcounter work`.
//
// [NewPool] checks the configuration, [Pool.Run] works until its context ends and then
// stops cleanly: it folds what is in hand and publishes what is in the outbox, within
// DrainTimeout. Nothing of a Pool has to survive: events that it held are claimed by
// another after MinIdle, and an event is counted once whoever folds it how often. While
// Redis or the Publisher does not answer it tries again; events and transitions wait in
// Redis. Any number of pools may run on one prefix, all with the same rules.
//
//	events ──read──▶ pending ──fold: XACK · count · levels──▶ counted
//	                    │  ▲                   │
//	       worker dies  │  │ claim after       └─▶ outbox ──relay: publish, PubAck, XDEL──▶ NATS
//	                    ▼  │ MinIdle                 ▲
//	                  orphaned                       └── sweep: levels that end
//	                    └──── cannot be counted ──XACK · XADD──▶ dead
package consumers

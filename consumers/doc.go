// Package consumers counts stored events and publishes the resulting transitions, for programs that want a worker
// inside their own process instead of `streamcounter work`.
//
// [NewPool] checks the configuration. [Pool.Run] works until its context ends and then stops cleanly: it folds the
// events that it holds and publishes the entries of the outbox, within DrainTimeout. A Pool keeps no state that must
// survive: another pool claims its events after MinIdle, and an event is counted once, however often it is folded and
// by whichever pool. While Redis or the Publisher does not answer, the Pool tries again; events and transitions wait
// in Redis. Any number of pools may run on one prefix, all with the same rules.
//
//	events ──read──▶ pending ──fold: XACK · count · levels──▶ counted
//	                    │  ▲                   │
//	       worker dies  │  │ claim after       └─▶ outbox ──relay: publish, PubAck, XDEL──▶ NATS
//	                    ▼  │ MinIdle                 ▲
//	                  orphaned                       └── sweep: levels that end
//	                    └──── cannot be counted ──XACK · XADD──▶ dead
package consumers

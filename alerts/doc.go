// Package alerts publishes throttle decisions and alerts to NATS JetStream, for programs
// that run workers of their own (package consumers) or publish what they decide.
//
// A [Publisher] stores transitions in two streams, which [Publisher.Ensure] makes where
// they are missing: one message per subject for decisions (who is throttled now), all
// messages of 7 days for alerts. Of one subject the next message is sent after the PubAck
// of the one before, and one without a PubAck is sent again with the same ID, until the
// context ends. NATS has to be 2.11 or later ([ErrOldServer]). Times are milliseconds
// since 1970 by Redis's clock.
package alerts

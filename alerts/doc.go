// Package alerts publishes throttle decisions and alerts to NATS JetStream, for programs that run their own workers
// (package consumers) or publish their own decisions.
//
// A [Publisher] stores transitions in two streams, which [Publisher.Ensure] creates if they are missing. The stream
// of decisions keeps one message per subject (who is throttled now), the stream of alerts keeps all messages of 7
// days. On each subject, the next message is sent after the PubAck of the one before. A message without a PubAck is
// sent again with the same ID, until the context ends. NATS has to be 2.11 or later ([ErrOldServer]). Times are
// milliseconds since 1970 by Redis's clock.
package alerts

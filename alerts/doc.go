// Package alerts puts throttle decisions and alerts onto NATS JetStream: the
// two streams they stand in (streams.go), the message each becomes
// (envelope.go), and publishing in order, again where an outcome is unknown
// (publisher.go). It imports the wire types alone.
package alerts

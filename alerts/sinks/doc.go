// Package sinks delivers alerts to who is to know of them: webhooks that are signed, Alertmanager, Slack. Each
// sink reads SC_ALERTS by a durable consumer of its own, so nothing is lost while its endpoint is down, and no
// sink waits for another. Read config.go (what a file says), files.go (the files that
// it names), sink.go (a sink made of both), then group.go (all sinks of a file), runner.go (one
// of them: where it begins to read), lock.go (one process at a time), session.go (while it is this one), queue.go
// (in order per key), send.go (one attempt), standing.go (what fires at an Alertmanager).
package sinks

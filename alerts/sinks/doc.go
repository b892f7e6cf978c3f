// Package sinks delivers alerts to other services: webhooks that are signed, Alertmanager, Slack. Each sink reads
// SC_ALERTS by its own durable consumer, so nothing is lost while its endpoint is down, and no sink waits for
// another. Read config.go (the fields of the file), files.go (the files that it names), sink.go (a sink made from the
// file and the files that it names), then group.go (all sinks of a file), runner.go (one of them: where it begins to
// read), lock.go (one process delivers at a time), session.go (one time that this process delivers), queue.go (in
// order per key), send.go (one attempt), active.go (the alerts that are active in an Alertmanager).
package sinks

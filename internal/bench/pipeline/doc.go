// Package pipeline measures the main path as a whole: events are appended at a steady rate, folded by a separate
// `work` process, and published. It reports the CPU time of Redis's main thread and of the worker per event, and how
// long a decision takes from the XADD that causes it to its message on NATS.
//
// `streamcounter bench pipeline` uses it. Read pipeline.go, then load.go.
package pipeline

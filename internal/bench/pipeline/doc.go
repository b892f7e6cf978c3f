// Package pipeline measures the main path as a whole: events appended at a steady
// rate, folded by one `work` process of its own, and published. It reports what
// Redis's main thread and the worker take for an event, and how long a decision
// takes from the XADD that causes it to its message on NATS.
//
// `streamcounter bench pipeline` uses it. Read pipeline.go, then load.go.
package pipeline

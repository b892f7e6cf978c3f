// Package bench owns the load that `streamcounter bench` puts on a Redis, and
// what it reports: append, fold, check and peek, each beside yardsticks that are
// measured in the same run, in turn with it. The speed of a machine drifts, so a
// ratio to a yardstick says more than a figure.
//
// A run has parts, one per operation and algorithm. A part has keys of its own
// (room.go, filled by fill.go) and is measured in slices (slice.go): a few
// hundred operations of the product, then as many of each yardstick, and again.
// Read bench.go next, then slice.go, then check.go (the simplest operation).
package bench

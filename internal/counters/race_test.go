//go:build race

package counters_test

// Under the race detector a timeline takes ten times as long, and races show in the first ones. CI draws 100 of them.
func init() { timelines = "10" }

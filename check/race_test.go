//go:build race

package check

// As in package windows: the race detector takes ten times as long, for nothing that timelines show.
func init() { timelines = "15" }

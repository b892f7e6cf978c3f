//go:build race

package windows_test

// The race detector takes ten times as long, and looks at what goroutines share, which
// timelines do not: there each property has fewer of them.
func init() { timelines = "30" }

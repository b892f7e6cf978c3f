//go:build race

package windows_test

// Under the race detector a timeline takes ten times as long, and races show in the first ones. CI draws all of them
// without it.
func init() { timelines, underRace = "10", true }

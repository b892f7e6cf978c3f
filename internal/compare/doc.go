// Package compare owns the comparison of the algorithms: it asks each of them
// the same requests, in the trace's own time, and recounts what each admitted.
//
// A trace comes from generate.go or read.go. run.go drives it through the
// contestants (contestant.go), a stretch of one after a stretch of the other;
// truth.go says what was right. table.go, result.go and page.go show it.
// rollout.go replays a trace through the rules of a file instead, and distinct.go
// counts its different values. Read run.go next.
package compare

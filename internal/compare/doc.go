// Package compare owns the comparison of the algorithms: it sends the same requests to each of them, in the trace's
// own time, and recounts what each admitted.
//
// A trace comes from generate.go or read.go. run.go sends it to the contestants (contestant.go), which take turns;
// truth.go computes the correct verdicts. table.go, result.go and page.go show the result. rollout.go replays a trace
// through the rules of a file instead, and distinct.go counts its different values. Read run.go next.
package compare

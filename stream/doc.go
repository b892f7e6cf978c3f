// Package stream appends request events to streamcounter's event log in Redis.
//
// Open a Redis client that never repeats a command (MaxRetries: -1; on a Cluster
// [NewCluster]), name the keys with [NewKeys], let [CheckMeta] verify that the prefix is
// used with as many partitions, and make a [Log]. [Log.Append] writes events in one
// pipeline and reports of each whether it is stored. A [Producer] gathers events, merges
// those of one key and appends them in the background.
//
// An event that was acknowledged is counted exactly once, a few milliseconds later.
// Where a reply is lost the outcome is unknown ([Outcome.Unknown]); an event with an ID
// may then be appended again, as an ID counts once per key.
//
// Producers in other languages need no library: one XADD and one PEXPIRE, which
// docs/producers.md describes.
package stream

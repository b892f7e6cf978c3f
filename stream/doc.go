// Package stream appends request events to streamcounter's event log in Redis.
//
// Open a Redis client that never repeats a command (MaxRetries: -1; on a Cluster
// [NewCluster]) and keeps to deadlines (ContextTimeoutEnabled: true), name the keys with
// [NewKeys] and make a [Log]. [Log.Append] writes events in one pipeline and returns which of
// them are stored. It refuses them all ([ErrMismatch]) if the prefix is used with another
// number of partitions. A [Producer] collects events, merges events of one key and appends
// them in the background.
//
// An event that was acknowledged is counted exactly once, a few milliseconds later.
// If a reply is lost, the outcome is unknown ([Outcome.Unknown]). An event with an ID may
// then be appended again, because an ID counts once per key.
//
// Producers in other languages need no library: one XADD and one PEXPIRE, which
// docs/producers.md describes.
package stream

// Package eventlog is the event log as workers see it: the consumer group that reads
// and claims (Reader), what waits in each partition (Backlogs), and how partitions
// lie on the servers of a Cluster (Shards, Clocks). Producers append with stream.
package eventlog

// Package eventlog is the workers' side of the event log: the consumer group that reads
// and claims (Reader), the waiting events of each partition (Backlogs), keys of a foreign
// type (TypesOf), and the servers of partitions on a Cluster (Shards, Clocks). Producers
// append with package stream.
package eventlog

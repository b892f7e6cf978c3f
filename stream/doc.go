// Package stream owns the event log: the names of the keys in Redis and how
// keys are spread over partitions (keys.go, meta.go), how events are appended
// (append.go, producer.go), and how a consumer group reads and claims them
// (group.go, lanes.go), and the client of a Redis Cluster that repeats nothing
// (cluster.go, clock.go). What an event does to a counter is not
// its business. Read keys.go next, then producer.go.
package stream

// Package target measures a running server: checks over HTTP or gRPC, as callers send them. It reports checks per
// second, latency, and the CPU time of the server and its Redis per check. Read target.go next.
package target

// Package target measures a server that runs: checks over HTTP or gRPC, as callers
// send them, in checks per second, latency, and the CPU that the server and its
// Redis take for one. Read target.go next.
package target

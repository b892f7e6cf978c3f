// Package check answers synchronous callers: one service (service.go) behind a
// transport each, of which there is HTTP (http.go, ingest.go,
// problem.go). Read service.go next.
package check

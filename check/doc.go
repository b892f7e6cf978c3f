// Package check answers synchronous callers: one service (service.go) behind a
// transport each, HTTP (router.go, http.go, ingest.go, problem.go,
// described in openapi.json) and gRPC (grpc.go). Tokens (tokens.go) say who may
// ask for what over either; extractors (extractor.go) take the key from a
// request that a proxy asks for. Read service.go next.
package check

// Package access decides who may ask for what: tokens (tokens.go) with their scopes, over HTTP and gRPC, and
// extractors (extractor.go), which take the key from a request that a proxy asks for.
package access

// Package grpcmw limits a gRPC service, as httpmw does one of HTTP: a call whose
// key is over its limit ends with ResourceExhausted, and says in RetryInfo when
// it would be admitted. Read interceptor.go next.
package grpcmw

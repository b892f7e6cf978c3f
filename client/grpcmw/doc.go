// Package grpcmw limits a gRPC service, as httpmw does one of HTTP: a call whose key is
// over its limit ends with ResourceExhausted, and RetryInfo says when it would be
// admitted. Calls without a key and health checks pass. Where nobody decides, a
// client.Client answers by its policy; a transport without one leads to Unavailable.
package grpcmw

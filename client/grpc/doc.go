// Package grpc asks a streamcounter server for checks over gRPC, which is Envoy's
// rate limit service. With our server answers have all that those of HTTP have;
// with another implementation of the service, one window per key. Put a
// client.Client around it for a deadline, a circuit breaker and a policy.
package grpc

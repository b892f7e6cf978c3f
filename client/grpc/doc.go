// Package grpc sends checks to a streamcounter server over gRPC, with Envoy's rate limit service. Answers of our
// server have all that HTTP answers have. Answers of another implementation of the service have one window per key.
// Put a client.Client around it for a deadline, a circuit breaker and a policy.
package grpc

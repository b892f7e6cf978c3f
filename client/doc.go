// Package client asks a streamcounter server whether a key may spend now, over
// HTTP (NewHTTP), with a deadline, a circuit breaker, and a policy for when nobody
// answers (New). It imports neither gRPC nor NATS nor a Redis client.
//
// Package grpc is the same over gRPC, direct asks Redis without a server, guard
// knows from NATS who is throttled without asking, and httpmw and grpcmw are
// middleware.
package client

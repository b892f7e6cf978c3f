// Package client asks a streamcounter server whether a key may spend now, over
// HTTP, with a deadline, a circuit breaker, and a policy for when nobody answers
// (Dial; or New, around any transport). It imports neither gRPC nor NATS nor a Redis client.
// Client has the calls: Check answers at once, Wait blocks until the key is admitted.
//
// Package grpc is the same over gRPC, direct asks Redis without a server, guard
// knows from NATS who is throttled without asking, and httpmw and grpcmw are
// middleware.
package client

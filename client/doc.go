// Package client asks a streamcounter server whether a key may spend now, over
// HTTP, with a deadline, a circuit breaker, and a policy for when nobody answers
// (Dial; or New, around any transport). It imports neither gRPC nor NATS nor a Redis client.
// Client has the calls: Check answers at once, Wait blocks until the key is admitted.
//
// Package grpc does the same over gRPC. direct uses Redis without a server. guard receives the throttled keys from
// NATS and needs no call to look one up. httpmw and grpcmw are middleware.
package client

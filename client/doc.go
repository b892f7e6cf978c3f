// Package client is what a Go service needs of streamcounter: checks over HTTP
// (http.go) or gRPC (grpc.go), a Client around either that keeps a deadline and
// has a policy for when nobody answers (client.go), and the Guard, which knows
// from NATS who is throttled without asking (guard.go). Package direct checks
// straight against Redis; httpmw and grpcmw are middleware. Read checker.go next.
package client

// Package grpcmw limits a gRPC service, as httpmw limits an HTTP service: a call whose key is over its limit ends
// with ResourceExhausted, and RetryInfo says when it would be admitted. Health checks pass. A call without a key
// passes (Config.RequireKey refuses it), and so does one whose key no rule matches (client.Config.UnmatchedKeys
// denies it). If nobody decides, a client.Client answers by its policy. With a transport alone, which has no policy,
// the call ends with Unavailable.
package grpcmw

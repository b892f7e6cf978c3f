// Package grpcmw limits a gRPC service, as httpmw does one of HTTP: a call whose key is
// over its limit ends with ResourceExhausted, and RetryInfo says when it would be
// admitted. Health checks pass. A call without a key passes (Config.RequireKey refuses it), and so does one
// whose key no rule matches (client.Config.UnmatchedKeys denies it). Where nobody decides, a
// client.Client answers by its policy; a transport without one leads to Unavailable.
package grpcmw

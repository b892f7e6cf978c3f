package target

import (
	"context"
	"net/url"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// callTime is the deadline of a call: Envoy also sends a deadline with each call.
const callTime = 5 * time.Second

// connections is how many connections the callers share.
const connections = 4

// overGRPC shares a few connections among the callers, as a proxy does.
func overGRPC(u *url.URL, c *Config) (callers []caller, closeAll func(), err error) {
	security := insecure.NewCredentials()
	if u.Scheme == "grpcs" {
		security = credentials.NewTLS(c.TLS)
	}
	var list []*grpc.ClientConn
	closeAll = func() {
		for _, conn := range list {
			_ = conn.Close()
		}
	}
	for range min(connections, c.Callers) {
		conn, err := grpc.NewClient(u.Host, grpc.WithTransportCredentials(security))
		if err != nil { // the address is wrong, so the first call fails and nothing is open yet
			return nil, nil, err
		}
		list = append(list, conn)
	}
	for i := range c.Callers {
		client := rlsv3.NewRateLimitServiceClient(list[i%len(list)])
		callers = append(callers, func(ctx context.Context, keys []string) (admitted, error) {
			return callGRPC(ctx, client, c.Token, keys)
		})
	}
	return callers, closeAll, nil
}

// callGRPC sends several keys as the descriptors of one request: all are admitted or none is. An answer has no limit
// if on_error decided, or if no rule matches.
func callGRPC(ctx context.Context, client rlsv3.RateLimitServiceClient, token string, keys []string) (a admitted,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	req := &rlsv3.RateLimitRequest{Domain: "streamcounter", Descriptors: make([]*commonv3.RateLimitDescriptor,
		len(keys))}
	for i, k := range keys {
		req.Descriptors[i] = &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "key",
			Value: k}}}
	}
	answer, err := client.ShouldRateLimit(ctx, req)
	if err != nil || answer.OverallCode != rlsv3.RateLimitResponse_OK {
		return a, err
	}
	for _, s := range answer.Statuses {
		if s.CurrentLimit == nil {
			a.onError++
		}
	}
	a.byLimit = len(keys) - a.onError
	return a, nil
}

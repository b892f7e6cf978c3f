package main

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestService(t *testing.T) {
	server := testkit.Answering(t, http.StatusTooManyRequests,
		`{"type":"urn:streamcounter:over-limit","allowed":false,"rule":"api","key":"user:42","cost":1,`+
			`"windows":[],"retry_after_ms":9000,"source":"redis"}`)
	ctx, cancel := context.WithCancel(t.Context())
	at, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", server.URL, func(a net.Addr) { at <- a }) }()
	conn, err := grpc.NewClient("passthrough:///"+(<-at).String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Must(t, err)
	_, err = grpc_health_v1.NewHealthClient(conn).Check(metadata.AppendToOutgoingContext(t.Context(), "x-api-key",
		"42"), &grpc_health_v1.HealthCheckRequest{})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want ResourceExhausted", err)
	}
	server.Close() // the policy admits from now on
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	testkit.Must(t, err)
	_, err = watch.Recv()
	testkit.Must(t, err)
	cancel()
	select {
	case err := <-ended:
		testkit.Must(t, err)
	case <-time.After(time.Minute):
		t.Error("an open stream holds up the stop")
	}
	_ = conn.Close()
}

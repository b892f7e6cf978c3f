package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

// The service answers, reports limits to its callers, and does not limit health checks.
func TestService(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 1 {
			_, _ = w.Write([]byte(`{"allowed":true,"rule":"api","key":"user:42","cost":1,` +
				`"windows":[{"limit":1,"window_ms":10000,"used":1,"remaining":0,"empty_ms":10000,` +
				`"next_free_ms":10000}],"source":"redis"}`))
			return
		}
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"type":"urn:streamcounter:over-limit","allowed":false,"rule":"api",` +
			`"key":"user:42","cost":1,"windows":[],"retry_after_ms":9000,"source":"redis"}`))
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	at, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		ended <- run(ctx, "127.0.0.1:0", server.URL, streamtest.NATS(t), 1, func(a net.Addr) { at <- a })
	}()
	base := "http://" + (<-at).String()
	for i, want := range []struct {
		path   string
		status int
	}{{"/", 200}, {"/", 429}, {"/healthz", 200}} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", base+want.path, nil)
		r.Header.Set("X-Api-Key", "42")
		resp, err := http.DefaultClient.Do(r)
		testkit.Must(t, err)
		resp.Body.Close()
		if resp.StatusCode != want.status || i == 0 && resp.Header.Get("RateLimit-Policy") != `"api-10s";q=1;w=10` {
			t.Errorf("request %d: %d %v, want %d", i, resp.StatusCode, resp.Header, want.status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

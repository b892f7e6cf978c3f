package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Beyond --max-connections, a new connection waits until another one ends.
func TestConnectionsAreBounded(t *testing.T) {
	p := startServe(t, "--max-connections", "1")
	first, err := net.Dial("tcp", strings.TrimPrefix(p.base(), "http://"))
	testkit.Must(t, err)
	defer first.Close()
	came := make(chan int, 1)
	go func() {
		code, _ := answered(t, over(nil), "GET", p.base()+"/healthz", "")
		came <- code
	}()
	// Meanwhile the first sends requests, and gets an answer to each: few, because a connection without a request
	// ends after 5 s, and a busy machine is slow.
	talk := bufio.NewReader(first)
	for range 100 {
		_, err := io.WriteString(first, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		testkit.Must(t, err)
		resp, err := http.ReadResponse(talk, nil)
		testkit.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		testkit.Must(t, err)
	}
	select {
	case code := <-came:
		t.Fatalf("a second caller was answered: %d", code)
	default:
	}
	_ = first.Close()
	if code := <-came; code != 200 {
		t.Errorf("once the first has gone: %d", code)
	}
}

// wire is a gRPC connection that can break the rules for clients.
type wire struct {
	net.Conn
	*http2.Framer
	headers bytes.Buffer
	encoder *hpack.Encoder
	next    uint32 // stream
}

func openWire(t *testing.T, more ...string) *wire {
	t.Helper()
	at := grpcAt.FindStringSubmatch(startServe(t, more...).text())
	c, err := net.Dial("tcp", "127.0.0.1:"+at[1])
	testkit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	testkit.Must(t, c.SetDeadline(time.Now().Add(40*time.Second)))
	_, err = c.Write([]byte(http2.ClientPreface))
	testkit.Must(t, err)
	w := &wire{Conn: c, Framer: http2.NewFramer(c, c), next: 1}
	w.encoder = hpack.NewEncoder(&w.headers)
	testkit.Must(t, w.WriteSettings())
	return w
}

// block encodes the headers of a call.
func (w *wire) block(method string) []byte {
	w.headers.Reset()
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "a"},
		{"content-type", "application/grpc"}, {"te", "trailers"}} {
		_ = w.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return bytes.Clone(w.headers.Bytes())
}

// Calls whose request never arrives end after a time, even without a token, and a connection has no more of them than
// --grpc-max-streams.
func TestUnsentGRPCRequestsEnd(t *testing.T) {
	t.Parallel()
	w := openWire(t, "--grpc-max-streams", "50")
	methods := []string{"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		healthpb.Health_Check_FullMethodName}
	const calls = 50
	for i := range calls + 1 { // one more than allowed
		testkit.Must(t, w.WriteHeaders(http2.HeadersFrameParam{StreamID: w.next, BlockFragment: w.block(methods[i%2]),
			EndHeaders: true}))
		w.next += 2
	}
	refused, ended := 0, map[uint32]bool{}
	for len(ended) < calls {
		f, err := w.ReadFrame()
		if err != nil {
			t.Fatalf("%d of %d calls have ended: %v", len(ended), calls, err)
		}
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			if f.ErrCode == http2.ErrCodeRefusedStream {
				refused++
				continue
			}
			ended[f.StreamID] = true
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				ended[f.StreamID] = true
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = w.WritePing(true, f.Data)
			}
		}
	}
	if refused != 1 {
		t.Errorf("%d calls were refused, want 1", refused)
	}
}

// The metadata of a call is bounded while it arrives, not after that.
func TestGRPCMetadataIsBounded(t *testing.T) {
	t.Parallel()
	w := openWire(t)
	first := w.block("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
	w.headers.Reset()
	// never indexed
	_ = w.encoder.WriteField(hpack.HeaderField{Name: "x-large", Value: string(bytes.Repeat([]byte("~"), 12<<20)),
		Sensitive: true})
	rest := w.headers.Bytes()
	testkit.Must(t, w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first}))
	sent := 0
	for len(rest) > 0 {
		n := min(len(rest), 16<<10)
		if err := w.WriteContinuation(1, len(rest) == n, rest[:n]); err != nil {
			break
		}
		rest, sent = rest[n:], sent+n
	}
	if len(rest) == 0 {
		t.Errorf("the server took all %d bytes", sent)
	}
}

// A connection is closed when it is old, for load balancing, and when it is idle.
func TestGRPCConnectionsEnd(t *testing.T) {
	for _, flag := range []string{"--grpc-max-age", "--grpc-max-idle"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			w := openWire(t, flag, "100ms")
			for {
				f, err := w.ReadFrame()
				if err != nil {
					t.Fatalf("%v before GOAWAY", err)
				}
				if f.Header().Type == http2.FrameGoAway {
					break
				}
			}
		})
	}
}

var grpcAt = regexp.MustCompile(`"grpc":"[^"]*:([0-9]+)"`)

// dialGRPC connects to the gRPC address of a process, with TLS if c is not nil.
func dialGRPC(t *testing.T, p *process, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	at := grpcAt.FindStringSubmatch(p.text())
	if at == nil {
		t.Fatalf("no gRPC address in\n%s", p.text())
	}
	return connect(t, "127.0.0.1:"+at[1], c)
}

// connect returns a connection to a gRPC server, with TLS if c is not nil.
func connect(t testing.TB, addr string, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	how := insecure.NewCredentials()
	if c != nil {
		how = credentials.NewTLS(c)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(how))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// descriptor returns a descriptor of these entries: key, value and so on.
func descriptor(pairs ...string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for pair := range slices.Chunk(pairs, 2) {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: pair[0], Value: pair[1]})
	}
	return d
}

func askLimit(ctx context.Context, conn *grpc.ClientConn, domain string, pairs ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: domain,
		Descriptors: []*commonv3.RateLimitDescriptor{descriptor(pairs...)}})
	return err
}

func limit(t *testing.T, conn *grpc.ClientConn, token string) error {
	t.Helper()
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return askLimit(ctx, conn, "web", "a", "b")
}

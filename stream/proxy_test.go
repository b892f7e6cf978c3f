package stream_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// lossyProxy stands before a server. Told to lose a reply, it hands the next
// request on, waits for the server's answer and closes the connection instead
// of handing that back.
type lossyProxy struct {
	addr string
	lose atomic.Bool
}

func newLossyProxy(t *testing.T, server string) *lossyProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &lossyProxy{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server)
		}
	}()
	return p
}

func (p *lossyProxy) serve(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	reply := make([]byte, 64<<10)
	for {
		n, err := server.Read(reply)
		if err != nil || p.lose.CompareAndSwap(true, false) {
			return
		}
		if _, err := client.Write(reply[:n]); err != nil {
			return
		}
	}
}

package faults

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// proxy stands between a part and its server and can spoil what passes.
type proxy struct {
	addr   string
	target string

	delay atomic.Int64 // ns that each piece waits, in both directions
	lose  atomic.Int64 // how many replies are to be swallowed, each with its connection

	mu    sync.Mutex
	conns map[net.Conn]bool // to clients
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	p := &proxy{addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		serving.Wait()
	})
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.conns, client)
		p.mu.Unlock()
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		p.pump(server, client, false)
		_ = server.Close()
	}()
	p.pump(client, server, true)
	_ = client.Close()
	<-sent
}

func (p *proxy) pump(to, from net.Conn, replies bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if d := p.delay.Load(); d > 0 {
			time.Sleep(time.Duration(d)) // this is the fault
		}
		if replies && p.take() {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) take() bool {
	for n := p.lose.Load(); n > 0; n = p.lose.Load() {
		if p.lose.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// halfClose tells every client that no more will come, and goes on taking.
func (p *proxy) halfClose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}
}

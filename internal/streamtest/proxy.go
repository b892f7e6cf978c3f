package streamtest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Proxy is a proxy in front of a server that disturbs the traffic. Its methods may be called from any goroutine.
type Proxy struct {
	// Addr is where it listens, as host:port.
	Addr   string
	target string
	l      net.Listener

	mu     sync.Mutex
	conns  map[net.Conn]bool // of clients and to the server; true: to a client
	refuse bool
	open   chan struct{} // not nil: nothing passes until it is closed
	half   bool          // with open: only replies wait
	lose   int           // how many replies to drop, each with its connection
	delay  time.Duration // of each piece, in both directions
}

// NewProxy starts a proxy for target, a host:port. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	p := &Proxy{Addr: l.Addr().String(), target: target, l: l, conns: map[net.Conn]bool{}}
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
		p.Heal()
		p.Refuse()
		serving.Wait()
	})
	return p
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	if p.refuse {
		p.mu.Unlock()
		return
	}
	p.conns[client], p.conns[server] = true, false
	p.mu.Unlock()
	defer p.locked(func() {
		delete(p.conns, client)
		delete(p.conns, server)
	})
	var requests sync.WaitGroup
	requests.Go(func() {
		p.copy(server, client, false)
		_ = server.Close()
	})
	p.copy(client, server, true)
	_ = client.Close()
	requests.Wait()
}

func (p *Proxy) copy(to, from net.Conn, replies bool) {
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if err != nil || !p.admit(replies) {
			return
		}
		if _, err := to.Write(piece[:n]); err != nil {
			return
		}
	}
}

// admit waits as long as a piece has to wait, and reports whether it may pass.
func (p *Proxy) admit(reply bool) bool {
	p.mu.Lock()
	open, delay := p.open, p.delay
	if p.half && !reply {
		open = nil
	}
	p.mu.Unlock()
	if open != nil {
		<-open
	}
	if delay > 0 {
		time.Sleep(delay) // this is the fault
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if reply && p.lose > 0 {
		p.lose--
		return false
	}
	return true
}

// Blackhole holds back everything that either side sends; connections stay open. Heal ends it.
func (p *Proxy) Blackhole() { p.hold(false) }

// HoldReplies passes requests on and holds back everything that the server sends. Heal ends it.
func (p *Proxy) HoldReplies() { p.hold(true) }

func (p *Proxy) hold(half bool) {
	p.locked(func() { p.open, p.half = make(chan struct{}), half })
}

func (p *Proxy) locked(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// LoseReplies drops the next n replies and closes the connection of each: the server has executed the request, and
// the client does not know it.
func (p *Proxy) LoseReplies(n int) { p.locked(func() { p.lose = n }) }

// Delay delays each piece by d, in both directions.
func (p *Proxy) Delay(d time.Duration) { p.locked(func() { p.delay = d }) }

// Sever closes all connections. New ones are accepted.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// Refuse closes all connections and every new one at once. Heal ends it.
func (p *Proxy) Refuse() {
	p.locked(func() { p.refuse = true })
	p.Sever()
}

// HalfClose closes the direction to every client, and still accepts what clients send.
func (p *Proxy) HalfClose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, client := range p.conns {
		if tcp, ok := c.(*net.TCPConn); ok && client {
			_ = tcp.CloseWrite()
		}
	}
}

// Close closes the listener, so that the system refuses new connections. Existing connections stay open.
func (p *Proxy) Close() error { return p.l.Close() }

// Heal lets everything pass again, at once.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open != nil {
		close(p.open)
	}
	p.open, p.refuse, p.lose, p.delay = nil, false, 0, 0
}

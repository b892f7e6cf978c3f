package streamtest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy stands before a server. It can be cut, and can swallow what passes: then
// connections stand and nothing comes of them.
type Proxy struct {
	// Addr is where it listens.
	Addr   string
	target string
	l      net.Listener

	mu    sync.Mutex
	open  map[net.Conn]bool
	cut   bool
	black chan struct{} // not nil: swallow until it is closed
	half  bool          // swallow only what the server says
}

// NewProxy starts a proxy for target that ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, l: l, open: map[net.Conn]bool{}}
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
		p.Sever(true)
		serving.Wait()
	})
	return p
}

func (p *Proxy) serve(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer s.Close()
	p.mu.Lock()
	if p.cut {
		p.mu.Unlock()
		return
	}
	p.open[c], p.open[s] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		both.Go(func() {
			defer c.Close()
			defer s.Close()
			_, _ = io.Copy(holding{way[0], p, way[1] == s}, way[1])
		})
	}
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	delete(p.open, s)
}

// holding writes when the proxy lets through.
type holding struct {
	net.Conn
	p      *Proxy
	answer bool
}

func (h holding) Write(b []byte) (int, error) {
	h.p.mu.Lock()
	black := h.p.black
	if h.p.half && !h.answer {
		black = nil
	}
	h.p.mu.Unlock()
	if black != nil {
		<-black
	}
	return h.Conn.Write(b)
}

// Blackhole holds all back; nobody is told.
func (p *Proxy) Blackhole() { p.hold(false) }

// HoldAnswers hands requests on and holds back what the server says.
func (p *Proxy) HoldAnswers() { p.hold(true) }

func (p *Proxy) hold(half bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.black, p.half = make(chan struct{}), half
}

// Close ends the listener; connections that stand go on.
func (p *Proxy) Close() error { return p.l.Close() }

// Heal lets everything through again.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.black != nil {
		close(p.black)
		p.black = nil
	}
	p.cut = false
}

// Sever ends all connections, and with more set, refuses new ones.
func (p *Proxy) Sever(more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = more
	for c := range p.open {
		_ = c.Close()
	}
}

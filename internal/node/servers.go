package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/net/netutil"

	"github.com/streamcounter/streamcounter/internal/settings"
)

// server answers at one address. The process opens, runs, reports and stops all its servers in the same loops,
// whatever protocol they use.
type server interface {
	// Serve answers on l until Shutdown, and then returns nil.
	Serve(l net.Listener) error
	// Shutdown takes no more calls and waits for those under way. Calls that have not ended when ctx ends are cut
	// off, which is an error.
	Shutdown(ctx context.Context) error
}

// transport is a protocol by which this program is called. A new transport is a file with its server, an address in
// settings/config.go, and an entry in transports.
type transport struct {
	name   string                          // the setting of its address
	title  string                          // for people
	about  string                          // what it serves
	scheme string                          // of its URL; empty: callers use its address without a URL
	addr   func(c *settings.Config) string // empty: not served
	open   func(n *node) server            // n has everything that calls need
	public bool                            // anybody who reaches it may call it
	local  bool                            // only this machine may reach it
	plain  bool                            // without TLS, even if the others have it
}

var transports = []transport{
	{name: "http", title: "HTTP", about: "the page at /, checks, events, /metrics", scheme: "http",
		addr: func(c *settings.Config) string { return c.HTTP }, open: newHTTPServer},
	{name: "grpc", title: "gRPC", about: "Envoy's rate limit service",
		addr: func(c *settings.Config) string { return c.GRPC.Addr }, open: newGRPCServer},
}

// healthTransport answers probes at --health: a kubelet has no client certificate. It reveals nothing else, so
// anybody who reaches it may call it.
var healthTransport = transport{name: "health", title: "health", about: "/healthz, /readyz", scheme: "http",
	addr: func(c *settings.Config) string { return c.Health }, open: newHealthServer, public: true, plain: true}

// endpoint is a transport that this process serves.
type endpoint struct {
	transport
	listener net.Listener
	server   server // set when all parts are open
}

// listen opens the addresses of all transports, so that a taken port ends the start. Calls wait until the servers
// run. If the servers wait for limits, connections are refused until then.
func (n *node) listen(context.Context) error {
	for _, t := range append(slices.Clip(n.transports), healthTransport, debugTransport) {
		addr := t.addr(n.config)
		if addr == "" {
			continue
		}
		var err error
		switch {
		case t.local:
			err = requireLoopback(t.name, addr)
		case !t.public:
			err = n.mayListen(t.name, addr)
		}
		if err != nil {
			return err
		}
		e := &endpoint{transport: t}
		if err := n.bind(e); err != nil {
			return err
		}
		if n.needsLimits() {
			_ = e.listener.Close()
		}
		n.endpoints = append(n.endpoints, e)
	}
	return nil
}

func (n *node) bind(e *endpoint) error {
	addr := e.addr(n.config)
	l, err := net.Listen("tcp", addr)
	for _, other := range n.endpoints {
		if err != nil && other != e && other.addr(n.config) == addr {
			return settings.Wrong(e.name, addr, "expected another address than that of --"+other.name)
		}
	}
	if err != nil {
		return settings.PortTaken(e.name, addr, err)
	}
	n.atStop(func() { _ = l.Close() }) // already closed if the server has run
	// golang.org/x/net/netutil: a few lines that the Go team maintains. Beyond the bound, a new connection waits
	// until another one ends, so that connections do not use up the memory.
	e.listener = netutil.LimitListener(l, n.config.Access.MaxConnections)
	return nil
}

// mayListen refuses an address that a port scan would find, unless callers must authenticate or --open is given.
func (n *node) mayListen(name, addr string) error {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return settings.Wrong(name, addr, err.Error()+"; expected HOST:PORT such as 127.0.0.1:8080")
	}
	if n.needsAuthentication() || at.IP.IsLoopback() { // an empty host means all addresses
		return nil
	}
	if !n.config.Access.Open {
		return settings.Wrong(name, addr, "other machines can reach this address, and nothing authenticates callers: "+
			"give --tokens (a file of tokens and their scopes) or --tls-client-ca (client certificates), or listen on "+
			"127.0.0.1. If the network keeps others out, give --open ("+settings.EnvName("open")+"=true)")
	}
	n.log.Warn("no access control on "+addr+" (--open): anyone who connects can read, charge and reset",
		"setting", name, "fix", "--tokens FILE or --tls-client-ca FILE")
	return nil
}

// url returns how to call e: a URL, or its address.
func (n *node) url(e *endpoint) string {
	at := e.listener.Addr().String()
	switch {
	case e.scheme == "":
		return at
	case n.tls != nil && !e.plain:
		return e.scheme + "s://" + at
	}
	return e.scheme + "://" + at
}

// baseURL returns the URL of the HTTP server, which every process has.
func (n *node) baseURL() string {
	for _, e := range n.endpoints {
		if e.name == "http" {
			return n.url(e)
		}
	}
	return ""
}

// servedAt lists the addresses for people, one per line.
func (n *node) servedAt() string {
	var b strings.Builder
	for _, e := range n.endpoints {
		fmt.Fprintf(&b, "  %-8s %s  (%s)\n", e.title, n.url(e), e.about)
	}
	return b.String()
}

package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// debugTransport serves Go's profiles and the log level at --debug, in any process. They show parts of the memory and
// change the log, so only this machine may reach them.
var debugTransport = transport{name: "debug", title: "debug", about: "/debug/pprof/, /debug/log-level",
	scheme: "http", addr: func(c *settings.Config) string { return c.Debug }, open: newDebugServer, local: true,
	plain: true}

// requireLoopback refuses an address that other machines can reach.
func requireLoopback(name, addr string) error {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil || !at.IP.IsLoopback() {
		return settings.Wrong(name, addr, "expected an address of this machine alone, such as 127.0.0.1:6060")
	}
	return nil
}

// newDebugServer leaves out cmdline of pprof, because a command line can contain passwords.
func newDebugServer(n *node) server {
	routes := []httpapi.Route{
		{Method: "GET", Path: "/debug/pprof/", Serve: http.HandlerFunc(pprof.Index)},
		{Method: "GET", Path: "/debug/pprof/profile", Serve: http.HandlerFunc(pprof.Profile)},
		{Method: "GET", Path: "/debug/pprof/symbol", Serve: http.HandlerFunc(pprof.Symbol)},
		{Method: "GET", Path: "/debug/pprof/trace", Serve: http.HandlerFunc(pprof.Trace)},
		{Method: "GET", Path: "/debug/log-level", Serve: http.HandlerFunc(n.getLogLevel)},
		{Method: "PUT", Path: "/debug/log-level", Serve: http.HandlerFunc(n.putLogLevel)},
	}
	return httpServer{&http.Server{Handler: httpapi.NewRouter(nil, routes...), ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		// A profile takes as long as its caller requests: a ReadTimeout or a WriteTimeout would cut it off.
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelWarn)}}
}

func (n *node) getLogLevel(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprintln(w, strings.ToLower(n.config.Level.Level().String()))
}

func (n *node) putLogLevel(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(io.LimitReader(r.Body, 64))
	var level slog.Level
	if err == nil {
		err = level.UnmarshalText([]byte(strings.TrimSpace(string(text))))
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("the body is %q, expected debug, info, warn or error", text), http.StatusBadRequest)
		return
	}
	before := n.config.Level.Level()
	n.config.Level.Set(level)
	n.log.Log(context.WithoutCancel(r.Context()), max(before, level, slog.LevelInfo), "the log level was changed",
		"from", strings.ToLower(before.String()), "to", strings.ToLower(level.String()))
	n.getLogLevel(w, r)
}

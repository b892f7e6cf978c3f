package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"
)

// server is a redis-server under callgrind. It writes a dump to out.1, out.2, … on each request.
type server struct {
	cmd           *exec.Cmd
	addr, out     string
	version       string
	stdoutAndErrs bytes.Buffer
}

// startServer starts a server on a free port of loopback. The server stores nothing on disk.
func startServer(ctx context.Context, out string) (*server, error) {
	version, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("redis-server --version: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: l.Addr().String(), out: out, version: strings.TrimSpace(string(version))}
	_, port, _ := net.SplitHostPort(s.addr)
	l.Close()
	s.cmd = exec.Command("valgrind", "--tool=callgrind", "--callgrind-out-file="+out, "redis-server", "--port", port,
		"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--hz", "1", "--stream-node-max-bytes", "512")
	s.cmd.Stdout, s.cmd.Stderr = &s.stdoutAndErrs, &s.stdoutAndErrs
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting valgrind: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", s.addr)
		if err == nil {
			conn.Close()
			return s, nil
		}
		select {
		case <-ctx.Done():
			s.stop()
			return nil, fmt.Errorf("redis-server under valgrind does not answer: %w\n%s", err, s.stdoutAndErrs.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

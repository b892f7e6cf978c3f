package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// measure runs one benchmark of one program against a Redis that is started for it, and gives
// its report as JSON.
func measure(ctx context.Context, dir, program string, bench []string) (report []byte, err error) {
	addr, stop, err := startRedis(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	args := append(append([]string{"bench"}, bench...), "--redis", "redis://"+addr, "--json")
	cmd := exec.CommandContext(ctx, program, args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if report, err = cmd.Output(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, complaints.String())
	}
	return report, nil
}

// startRedis starts a redis-server on a free port of loopback, which keeps nothing.
func startRedis(ctx context.Context, dir string) (addr string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := l.Close(); err != nil {
		return "", nil, err
	}
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--stream-node-max-bytes", "512", "--dir", dir)
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("starting redis-server: %w", err)
	}
	stop = func() error {
		_ = cmd.Process.Kill() // it has ended otherwise, which Wait tells
		_ = cmd.Wait()
		return nil
	}
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for client.Ping(ctx).Err() != nil {
		if !pause.For(ctx, 10*time.Millisecond) {
			return "", nil, errors.Join(fmt.Errorf("redis-server does not answer: %w", ctx.Err()), stop())
		}
	}
	return addr, stop, nil
}

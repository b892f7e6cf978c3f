package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
)

// server is a redis-server under callgrind.
type server struct {
	cmd    *exec.Cmd
	dir    string
	client *redis.Client
	dumps  int
	idle   float64 // instructions per second of a server that nobody asks
}

// startServer starts one on a free port of loopback, which keeps nothing.
func startServer(ctx context.Context) (*server, error) {
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	var output bytes.Buffer
	cmd := exec.Command("valgrind", "--tool=callgrind", "--callgrind-out-file="+filepath.Join(dir, "out"),
		"redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--hz", "1",
		"--stream-node-max-bytes", "512", "--dir", dir)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting valgrind: %w", err)
	}
	s := &server{cmd: cmd, dir: dir, client: redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, MaxRetries: -1,
		ReadTimeout: time.Minute, Protocol: 2})}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for s.client.Ping(ctx).Err() != nil {
		if !pause.For(ctx, 100*time.Millisecond) {
			s.stop()
			return nil, fmt.Errorf("redis-server under valgrind does not answer:\n%s", output.String())
		}
	}
	if err := s.control("--zero"); err != nil {
		s.stop()
		return nil, err
	}
	began := time.Now()
	pause.For(ctx, 3*time.Second)
	if s.idle, err = s.sinceZero(); err != nil {
		s.stop()
		return nil, err
	}
	s.idle /= time.Since(began).Seconds()
	return s, nil
}

func (s *server) stop() {
	_ = s.client.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	_ = os.RemoveAll(s.dir)
}

func (s *server) version(ctx context.Context) (string, error) {
	info, err := s.client.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	return info["Server"]["redis_version"] + " build " + info["Server"]["redis_build_id"], nil
}

// operation is what is counted: do makes `of` of them per call.
type operation struct {
	name string
	of   int
	do   func(ctx context.Context, call int) error
}

// Calls before the counts, which build what is built once; counts; and calls that are counted.
const warm, rounds, counted = 50, 3, 200

// count gives the instructions of one operation: the least of some counts, as what else a server
// does meanwhile (cron, a table that grows) comes on top.
func (s *server) count(ctx context.Context, op operation) (least float64, err error) {
	for i := range warm {
		if err := op.do(ctx, i); err != nil {
			return 0, err
		}
	}
	calls := max(1, counted/op.of)
	for round := range rounds {
		if err := s.control("--zero"); err != nil {
			return 0, err
		}
		began := time.Now()
		for i := range calls {
			if err := op.do(ctx, warm+round*calls+i); err != nil {
				return 0, err
			}
		}
		total, err := s.sinceZero()
		if err != nil {
			return 0, err
		}
		each := (total - s.idle*time.Since(began).Seconds()) / float64(calls*op.of)
		if round == 0 || each < least {
			least = each
		}
	}
	return least, nil
}

// sinceZero gives the instructions since the last --zero.
func (s *server) sinceZero() (float64, error) {
	if err := s.control("--dump"); err != nil {
		return 0, err
	}
	s.dumps++
	return totals(filepath.Join(s.dir, "out."+strconv.Itoa(s.dumps)))
}

func (s *server) control(what string) error {
	out, err := exec.Command("callgrind_control", what, strconv.Itoa(s.cmd.Process.Pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("callgrind_control %s: %w\n%s", what, err, out)
	}
	return nil
}

// totals reads the sum at the end of a dump.
func totals(path string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if text, found := strings.CutPrefix(lines.Text(), "totals: "); found {
			return strconv.ParseFloat(strings.TrimSpace(text), 64)
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("%s has no totals", path))
}

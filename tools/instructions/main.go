// Command instructions counts the instructions that Redis executes for an operation, under callgrind. Unlike times,
// the counts do not depend on how busy the machine is.
//
//	go -C tools run ./instructions            # prints the counts; exit code 1 where one grew by over a tenth
//	go -C tools run ./instructions -only sliding-log/check,event    # some, as CI does
//	go -C tools run ./instructions -update    # takes them as the new figures
//
// It runs BenchmarkOperations of internal/counters against a redis-server under valgrind. The figures are for one build
// of Redis, which they name. With another build, it compares the ratios to GCRA.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// figures are the counts of the last -update.
type figures struct {
	Redis string             `json:"redis"`
	Each  map[string]float64 `json:"instructions"`
}

const (
	reference = "GCRA" // other builds of Redis are compared by the ratio to it
	tolerance = 1.1
	path      = "instructions/figures.json"
)

func main() {
	update := flag.Bool("update", false, "write the counts to "+path+" in place of comparing them")
	only := flag.String("only", "", "count only these benchmarks, separated by commas, and "+reference)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *update); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, update bool) error {
	if update && only != "" {
		return errors.New("-update writes all figures: leave -only out")
	}
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startServer(ctx, filepath.Join(dir, "out"))
	if err != nil {
		return err
	}
	defer s.stop()
	now := figures{Redis: s.version}
	if now.Each, err = benchmark(ctx, s, only); err != nil {
		return err
	}
	if !update {
		return compare(path, now)
	}
	text, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

var result = regexp.MustCompile(`(?m)^BenchmarkOperations/(\S+?)(?:-\d+)?\s.*?([\d.e+]+) redis-instructions/op`)

// benchmark returns name → instructions of one operation.
func benchmark(ctx context.Context, s *server, only string) (map[string]float64, error) {
	var patterns []string
	for _, name := range strings.Split(reference+","+only, ",") {
		patterns = append(patterns, "^BenchmarkOperations$/^"+strings.ReplaceAll(name, "/", "$/^"))
	}
	if only == "" {
		patterns = []string{"^BenchmarkOperations$"}
	}
	cmd := exec.CommandContext(ctx, "go", "test", "./internal/counters", "-vet=off", "-run", "^$", "-bench",
		strings.Join(patterns, "|"), "-benchtime", "100x", "-timeout", "20m")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	cmd.Env = append(os.Environ(), fmt.Sprintf("STREAMCOUNTER_TEST_CALLGRIND=%s,%d,%s", s.addr, s.cmd.Process.Pid,
		s.out))
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go test: %w\n%s", err, text)
	}
	each := map[string]float64{}
	for _, m := range result.FindAllStringSubmatch(string(text), -1) {
		if each[m[1]], err = strconv.ParseFloat(m[2], 64); err != nil {
			return nil, err
		}
		fmt.Printf("%-45s %9.0f instructions\n", m[1], each[m[1]])
	}
	if each[reference] == 0 {
		return nil, fmt.Errorf("no figure of %s in\n%s", reference, text)
	}
	return each, nil
}

// compare returns an error that names the counts that grew. It scales the figures of another build of Redis by the
// reference.
func compare(path string, now figures) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var old figures
	if err := json.Unmarshal(text, &old); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	scale := 1.0
	if old.Redis != now.Redis && old.Each[reference] > 0 {
		scale = now.Each[reference] / old.Each[reference]
		fmt.Printf("the figures are of %q, this is %q: compared by the ratio to %s\n", old.Redis, now.Redis, reference)
	}
	var grown []error
	for name, n := range now.Each {
		switch was, known := old.Each[name]; {
		case !known:
			grown = append(grown, fmt.Errorf("%s: %s has no figure; -update writes one", path, name))
		case n > was*scale*tolerance:
			grown = append(grown, fmt.Errorf("%s: %.0f instructions, %.0f in %s: grew by %.0f %%", name, n, was*scale,
				path, 100*(n/was/scale-1)))
		}
	}
	return errors.Join(grown...)
}

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
	for ctx.Err() == nil {
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			conn.Close()
			return s, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("redis-server under valgrind does not answer: %w\n%s", ctx.Err(), s.stdoutAndErrs.String())
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

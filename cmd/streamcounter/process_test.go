package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

// TestMain lets the test binary act as the program, so that tests can start it as processes and kill them.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_BINARY_IS_STREAMCOUNTER") == "1" {
		main()
		return
	}
	for name, value := range map[string]string{
		"STREAMCOUNTER_GRPC":          "127.0.0.1:0", // otherwise all processes would want the same port
		"STREAMCOUNTER_CHECK_TIMEOUT": "5s",          // for busy machines: Redis must answer the requests of the tests
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	redis.SetLogger(&backend.RedisLog)
	streamtest.Main(m)
}

type process struct {
	*streamtest.Child
	t testing.TB
}

func (p *process) text() string { return p.String() }

// programEnv returns the environment without the variables of the tests, about which the program would warn.
func programEnv() []string {
	ours := func(line string) bool { return strings.HasPrefix(line, "STREAMCOUNTER_TEST_") }
	return append(slices.DeleteFunc(os.Environ(), ours), "TEST_BINARY_IS_STREAMCOUNTER=1")
}

// startProgram runs the program until the test ends.
func startProgram(t testing.TB, args ...string) *process {
	t.Helper()
	return startReading(t, nil, args...)
}

// startReading is startProgram with an input.
func startReading(t testing.TB, in io.Reader, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Stdin, cmd.Env = in, programEnv()
	return &process{streamtest.Run(t, cmd), t}
}

func (p *process) until(text string) {
	p.t.Helper()
	p.Eventually(fmt.Sprintf("it says %q", text), func() (bool, string) {
		said := p.text()
		return strings.Contains(said, text), said
	})
}

// interrupt ends the program cleanly and returns its exit code.
func (p *process) interrupt() int { p.t.Helper(); return p.EndsOn(syscall.SIGINT) }

// A worker stops in time although Redis hangs: it waits for no answer after its time is over.
func TestAWorkerStopsWhileRedisHangs(t *testing.T) {
	t.Parallel()
	own := streamtest.OwnRedis(t)
	p := startProgram(t, "work", "--redis", own.URL(), "--nats", streamtest.OwnNATS(t).URL(), "--rules", devRules(t),
		"--http", "127.0.0.1:0", "--drain-timeout", "100ms")
	p.until(`"msg":"ready"`)
	own.Pause()
	began := time.Now()
	p.interrupt()
	if took := time.Since(began); took > 4*time.Second { // one answer is waited for 5 s
		t.Errorf("it stopped after %v", took)
	}
}

// A check that finds a corrupt counter counts it, and the log names the first ones.
func TestServeReportsCorruptCounters(t *testing.T) {
	t.Parallel()
	url := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	p, redis, keys := startServe(t, "--redis", url), streamtest.Connect(t, url), keysOf(t, "sc")
	for i := range 30 {
		key := fmt.Sprint("user:", i)
		name := keys.Counter(keys.Partition(key), "log", key)
		testkit.Must(t, redis.Set(t.Context(), name, "x", 0).Err())
		request(t, "POST", p.base()+"/v1/check", `{"key":"`+key+`"}`)
		if i == 0 {
			p.until(`"key":"` + name + `"`)
		}
	}
	if n := metric(t, p.base(), "streamcounter_counters_corrupt_total"); n != "30" {
		t.Errorf("it counts %s corrupt counters, expected 30", n)
	}
	if n := strings.Count(p.text(), "corrupt or foreign"); n < 10 || n > 20 {
		t.Errorf("the log has %d lines of them, expected ten at once", n)
	}
}

// runProgram runs a command to its end with an input. It does so in this process: with the race detector a start
// takes a second, and there are hundreds.
func runProgram(t testing.TB, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return runWithin(ctx, stdin, args...)
}

func runWithin(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs testkit.Log
	code = runOn(ctx, strings.NewReader(stdin), &out, &errs, args...)
	return code, out.String(), errs.String()
}

func runOn(ctx context.Context, in io.Reader, out, errs io.Writer, args ...string) (code int) {
	root := newRoot()
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	return run(ctx, root, args)
}

// failure is any exit code but 0.
const failure = -1

// expect runs a command line, whose words have no spaces. It expects an exit code, and texts in what the command says,
// and returns that.
func expect(t testing.TB, line string, code int, says ...string) string {
	t.Helper()
	got, out, errs := runProgram(t, "", strings.Fields(line)...)
	if got != code && (code != failure || got == 0) {
		t.Errorf("%s: exit code %d, want %d\n%s%s", line, got, code, out, errs)
	}
	for _, text := range says {
		if !strings.Contains(out+errs, text) {
			t.Errorf("%s: it does not say %q:\n%s%s", line, text, out, errs)
		}
	}
	return out + errs
}

func devRules(t testing.TB) string {
	t.Helper()
	return testkit.WriteFile(t, "rules.yml", devRulesText)
}

// startServe starts a serve with devRules on this machine alone, with more flags, and waits until it is ready.
func startServe(t testing.TB, more ...string) *process {
	t.Helper()
	p := startProgram(t, append([]string{"serve", "--redis", "embedded:0", "--rules", devRules(t), "--http",
		"127.0.0.1:0"}, more...)...)
	p.until(`"msg":"ready"`)
	return p
}

// call sends a request with headers, such as "Accept: text/html". It returns the answer and its body; the status is 0
// if no answer came.
func call(t testing.TB, c *http.Client, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	testkit.Must(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if req.Header.Set(name, value); name == "Host" {
			req.Host = value
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		return &http.Response{}, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testkit.Must(t, err)
	return resp, string(text)
}

func request(t testing.TB, method, url, body string) (code int, answer string) {
	t.Helper()
	resp, text := call(t, http.DefaultClient, method, url, body, "Content-Type: application/json")
	return resp.StatusCode, text
}

// metric reads one sample from a process's /metrics.
func metric(t testing.TB, base, sample string) string {
	t.Helper()
	_, text := request(t, "GET", base+"/metrics", "")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, sample+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return fmt.Sprintf("no sample %s", sample)
}

func rewrite(t testing.TB, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

const hangUp = syscall.SIGHUP

// withHangUp lets the programs that a test starts get SIGHUP, even if the tests run under nohup: a program that begins
// with the signal ignored leaves it ignored.
func withHangUp(t testing.TB) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, hangUp)
	t.Cleanup(func() { signal.Stop(c) })
}

func keysOf(t testing.TB, prefix string) *stream.Keys {
	t.Helper()
	k, err := stream.NewKeys(prefix, stream.DefaultPartitions)
	testkit.Must(t, err)
	return k
}

func partitionOf(t testing.TB, key string) string { return fmt.Sprint(keysOf(t, "sc").Partition(key)) }

// A process that reads files again on SIGHUP goes on, also before it is ready. Any other command ends cleanly.
func TestHangUp(t *testing.T) {
	withHangUp(t)
	for _, command := range []string{"serve", "work"} {
		silent, err := net.Listen("tcp", "127.0.0.1:0") // one each: a command may connect twice
		testkit.Must(t, err)
		defer silent.Close()
		p := startProgram(t, command, "--redis", "redis://"+silent.Addr().String(), "--rules",
			testkit.WriteFile(t, "rules.yml", leastRules(10)))
		_, err = silent.Accept() // it waits for an answer
		testkit.Must(t, err)
		testkit.Must(t, p.Cmd.Process.Signal(hangUp))
		if code := p.interrupt(); code < 0 {
			t.Errorf("%s: SIGHUP ended it before it was ready", command)
		}
	}

	url, prefix := streamtest.Redis(t), streamtest.Prefix(t)
	in, write, err := os.Pipe()
	testkit.Must(t, err)
	defer write.Close()
	p := startReading(t, in, "append", "--redis", url, "--prefix", prefix)
	_, err = io.WriteString(write, "user:1\n")
	testkit.Must(t, err)
	streamtest.Eventually(t, "the event is appended", func() (bool, string) {
		n := streamtest.Connect(t, url).Exists(t.Context(), prefix+":{"+partitionOf(t, "user:1")+"}:events").Val()
		return n == 1, fmt.Sprint(n)
	})
	if code := p.EndsOn(hangUp); code != 130 || !strings.Contains(p.text(), "appended 1 events") {
		t.Errorf("append: exit code %d, %s", code, p.text())
	}
}

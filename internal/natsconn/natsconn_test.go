package natsconn_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

func TestMain(m *testing.M) { streamtest.Main(m) }

func connect(t *testing.T, url string, options ...nats.Option) (*nats.Conn, *natsconn.Status, *testkit.Log) {
	t.Helper()
	log, status := &testkit.Log{}, &natsconn.Status{OnClosed: func(err error) { t.Errorf("closed: %v", err) }}
	nc, err := natsconn.Connect(natsconn.Config{URL: url, Wait: true, Status: status,
		Log: slog.New(slog.NewJSONHandler(log, nil))}, options...)
	testkit.Must(t, err)
	t.Cleanup(nc.Close)
	return nc, status, log
}

func awaitConnected(t *testing.T, s *natsconn.Status, want bool) {
	t.Helper()
	streamtest.Eventually(t, fmt.Sprint("connected is ", want), func() (bool, string) {
		return s.Connected() == want, ""
	})
}

// startServer runs a NATS server at a port (0: any) until stop.
func startServer(t *testing.T, o server.Options) (port int, stop func()) {
	t.Helper()
	s, stop := streamtest.EmbeddedNATS(t, o)
	return s.Addr().(*net.TCPAddr).Port, stop
}

// The server restarts with another password, refuses us again and again, and restarts with the old one.
func TestTheConnectionComesBackAfterAWrongPassword(t *testing.T) {
	port, stop := startServer(t, server.Options{Username: "u", Password: "right-one"})
	nc, status, log := connect(t, fmt.Sprintf("nats://u:right-one@127.0.0.1:%d", port))
	awaitConnected(t, status, true)
	heard, err := nc.SubscribeSync("a")
	testkit.Must(t, err)
	stop()
	awaitConnected(t, status, false)
	_, stop = startServer(t, server.Options{Port: port, Username: "u", Password: "another"})
	streamtest.EventuallyLogged(t, log, `"NATS reports an error"`, 3) // the library gives up at the second
	stop()
	startServer(t, server.Options{Port: port, Username: "u", Password: "right-one"})
	awaitConnected(t, status, true)
	testkit.Must(t, nc.Publish("a", []byte("x")))
	if _, err := heard.NextMsg(time.Minute); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "right-one") {
		t.Errorf("the log has the password:\n%s", log)
	}
}

const helloText = `INFO {"server_id":"x","version":"2.12.0","max_payload":1048576,"headers":true}` + "\r\n"

// newBroken runs a server that accepts a client, sends it what the test chooses, and serves the next client as NATS
// does. sent is closed after the first send.
func newBroken(t *testing.T, send func(w *bufio.Writer) error) (url string, sent <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	var first sync.Once
	done := make(chan struct{})
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go func() {
				t.Cleanup(func() { _ = c.Close() })
				fmt.Fprint(c, helloText)
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if lines.Text() == "PING" {
						fmt.Fprint(c, "PONG\r\n")
						first.Do(func() {
							w := bufio.NewWriterSize(c, 1<<20)
							_, _ = send(w), w.Flush()
							close(done)
						})
					}
				}
			}()
		}
	}()
	return fmt.Sprintf("nats://u:s3cret@%s", l.Addr()), done
}

func repeat(text string) func(*bufio.Writer) error {
	return func(w *bufio.Writer) error {
		for { // until the client is gone
			if _, err := w.WriteString(text); err != nil {
				return err
			}
		}
	}
}

func once(text string) func(*bufio.Writer) error {
	return func(w *bufio.Writer) error { _, err := w.WriteString(text); return err }
}

// The data of a broken or hostile server neither ends the process nor uses up its memory, and the connection comes
// back.
func TestABrokenServer(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		send func(*bufio.Writer) error
		says string // text in the log
	}{
		{once("MSG a 1 9223372036854775807\r\n"), "a message of 9223372036854775807 bytes"},
		{once("MSG a 1 1000000000000\r\nx"), "a message of 1000000000000 bytes"},
		{once("MSG a 1 18446744073709551616\r\n"), "the length of a message"}, // 2^64
		{once("MSG a 1 -1\r\n"), "the length of a message"},
		{once("MSG a 1 1\r5\r\n"), "does not end in CR LF"},
		{once("MSG a 1 1\r\nxyMSG a 1 9223372036854775807\r\n"), "longer than announced"},
		{once("HMSG a 1 12 10\r\n"), "headers of 12 bytes"}, // longer than the message
		{once("HMSG a 1 1000000 1000000\r\n"), "headers of 1000000 bytes"},
		{once("INFO {\r\n"), "INFO is not JSON"},
		{repeat(helloText), "INFO 100 times"},
		{repeat("INFO " + long), "a line of over"},
		{repeat("-ERR '" + long), "a line of over"},
		{repeat("-ERR 'Broken s3cret " + long[:900] + "'\r\n"), "NATS says 'Broken xxxxx x"},
		{once("-ERR 'User Authentication Expired'\r\n"), "User Authentication Expired"},
		{once("HTTP/1.1 400 Bad\r\n"), "it says HTTP/1.1 400 Bad"},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			url, sent := newBroken(t, c.send)
			nc, status, log := connect(t, url)
			_, err := nc.SubscribeSync("a")
			testkit.Must(t, err)
			select {
			case <-sent:
			case <-time.After(time.Minute):
				t.Fatal("no server has sent it")
			}
			streamtest.EventuallyLogged(t, log, "NATS is connected again", 1)
			awaitConnected(t, status, true)
			checkLog(t, log, c.says)
		})
	}
}

// A server names more servers than a cluster has, and none of them exists: they are not tried in place of the
// configured one. A few named servers are used, as always.
func TestServersThatAServerNames(t *testing.T) {
	for _, n := range []int{3, 1000} {
		var urls []string
		for i := range n {
			urls = append(urls, fmt.Sprintf("127.0.0.1:%d", i+1))
		}
		list, err := json.Marshal(urls)
		testkit.Must(t, err)
		url, _ := newBroken(t, func(w *bufio.Writer) error {
			_, err := fmt.Fprintf(w, "INFO {\"connect_urls\":%s}\r\n", list)
			for err == nil { // again and again, because the first can come before the subscription
				if _, err = w.WriteString("MSG a 1 2\r\nhi\r\n"); err == nil {
					err = w.Flush()
				}
				time.Sleep(time.Millisecond)
			}
			return err
		})
		nc, _, _ := connect(t, url)
		heard, err := nc.SubscribeSync("a")
		testkit.Must(t, err)
		_, err = heard.NextMsg(time.Minute)
		testkit.Must(t, err)
		if found := len(nc.DiscoveredServers()); found != n && n < 10 || found != 0 && n > 10 {
			t.Errorf("%d of %d servers are taken", found, n)
		}
	}
}

// checkLog checks for a text in JSON lines of a bounded length, without any secret.
func checkLog(t *testing.T, log *testkit.Log, says string) {
	t.Helper()
	text := log.String()
	if !strings.Contains(text, says) || strings.Contains(text, "s3cret") {
		t.Errorf("the log has no %q, or the password:\n%s", says, text)
	}
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) || len(line) > 1024 {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
	}
}

// A server refuses one publish after another for as long as the test wants: the connection stays, memory and log are
// bounded, and later messages arrive.
func TestRefusalsWithoutAPause(t *testing.T) {
	const refusals = 100_000
	one := "-ERR 'Permissions Violation for Publish to \"" + strings.Repeat("s", 1000) + "\"'\r\n"
	url, _ := newBroken(t, func(w *bufio.Writer) error {
		for range refusals {
			if _, err := w.WriteString(one); err != nil {
				return err
			}
		}
		_, err := w.WriteString("MSG a 1 2\r\nhi\r\n")
		return err
	})
	var passed atomic.Int64
	log := &testkit.Log{}
	report := natsconn.ErrorHandler(slog.New(slog.NewJSONHandler(log, nil)))
	nc, status, _ := connect(t, url, nats.ErrorHandler(func(nc *nats.Conn, s *nats.Subscription, err error) {
		passed.Add(1)
		report(nc, s, err)
	}))
	heard, err := nc.SubscribeSync("a")
	testkit.Must(t, err)
	if m, err := heard.NextMsg(time.Minute); err != nil || string(m.Data) != "hi" {
		t.Fatalf("%v, %v", m, err)
	}
	runtime.GC()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	if status.Disconnects() != 0 || after.HeapAlloc > 50<<20 {
		t.Errorf("%d disconnects, %d MB", status.Disconnects(), after.HeapAlloc>>20)
	}
	if n := passed.Load(); n > refusals/10 {
		t.Errorf("%d of %d refusals reach the library", n, refusals)
	}
	checkLog(t, log, "Permissions Violation")
	if n := strings.Count(log.String(), "\n"); n > 20 {
		t.Errorf("%d lines", n)
	}
}

// Messages of all sizes, with headers and without, arrive whole, over TLS too.
func TestMessagesArrive(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	cert, key := ours.Issue("nats")
	pair, err := tls.LoadX509KeyPair(cert, key)
	testkit.Must(t, err)
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": {Certificates: []tls.Certificate{pair},
		MinVersion: tls.VersionTLS12}} {
		t.Run(name, func(t *testing.T) {
			port, _ := startServer(t, server.Options{TLSConfig: config, TLS: config != nil, TLSTimeout: 5})
			status := &natsconn.Status{}
			c := natsconn.Config{URL: fmt.Sprintf("nats://127.0.0.1:%d", port), Status: status}
			if config != nil {
				if _, err := natsconn.Connect(c); err == nil {
					t.Error("a server of an unknown authority is taken")
				}
				c.TLS = ours.Config("", "")
			}
			nc, err := natsconn.Connect(c)
			testkit.Must(t, err)
			defer nc.Close()
			heard, err := nc.SubscribeSync("a.>")
			testkit.Must(t, err)
			sizes := []int{0, 1, 2, 100, 4096, 32 << 10, 32<<10 + 1, 64 << 10, 1<<20 - 100}
			for i, size := range sizes {
				m := nats.NewMsg("a." + strings.Repeat("b", i))
				if i == 0 {
					m.Subject = "a.b"
				}
				m.Reply, m.Data = "r", bytes.Repeat([]byte{'\r', '\n'}, size)[:size]
				if i%2 == 1 {
					m.Header.Set("H", strings.Repeat("v", i))
				}
				testkit.Must(t, nc.PublishMsg(m))
			}
			for i, size := range sizes {
				m, err := heard.NextMsg(time.Minute)
				testkit.Must(t, err)
				if len(m.Data) != size || m.Reply != "r" || i%2 == 1 && m.Header.Get("H") != strings.Repeat("v", i) {
					t.Errorf("message %d has %d bytes, %v; expected %d", i, len(m.Data), m.Header, size)
				}
			}
		})
	}
}

func TestURLs(t *testing.T) {
	for _, url := range []string{"", "http://127.0.0.1", "ws://127.0.0.1", "nats://", ":4222", "a,", "a:b", "a:65536",
		"nats://a b", "a%zz", "nats://SECRET/x@a:1", "SECRET#x@a", "tls://SECRET?x@a", "::1",
		"nats://::1:23050", "a:1;b:2", "nats:/127.0.0.1:1", "a:0"} {
		if _, err := natsconn.Connect(natsconn.Config{URL: url}); err == nil ||
			err.Error() != "expected nats://HOST:PORT or tls://HOST:PORT" {
			t.Errorf("%q: %v", url, err)
		}
	}
	for _, url := range []string{"a", "a:1, nats://b/", "nats://u:p%2F@a:1,tls://[::1]:2", "NATS://TOKEN@a"} {
		if list, err := natsconn.Servers(url); err != nil || len(list) != 1+strings.Count(url, ",") {
			t.Errorf("%q: %v, %v", url, list, err)
		}
	}
}

package streamtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

var sharedNATS shared

// NATS returns the URL of a NATS server with JetStream that the tests of this package share: use subjects and streams
// under Prefix. The server runs in a container (EnvNATSImage). Without containers it is the nats-server module in
// this process, which is the same code. With EnvRequire it must be the container.
func NATS(t testing.TB) string {
	t.Helper()
	url, err := sharedNATS.get(t, startSharedNATS)
	if err != nil {
		missing(t, "a real NATS server", "start Docker", err)
	}
	return url
}

func startSharedNATS() (url, note string, stop func(), err error) {
	addr, stop, err := runContainer(cmp.Or(os.Getenv(EnvNATSImage), DefaultNATSImage), 4222, awaitNATS,
		testcontainers.WithCmd("--jetstream", "--store_dir", "/tmp"),
		testcontainers.WithTmpfs(map[string]string{"/tmp": "mode=1777"}),
		testcontainers.WithWaitStrategy(wait.ForLog("Server is ready").WithPollInterval(pollEvery)),
	)
	if err == nil {
		return "nats://" + addr, "", stop, nil
	}
	if required() {
		return "", "", nil, err
	}
	dir, mkErr := os.MkdirTemp("", "streamtest-nats-")
	if mkErr != nil {
		return "", "", nil, fmt.Errorf("make a directory for JetStream: %w", mkErr)
	}
	s, startErr := serveNATS(server.Options{JetStream: true, StoreDir: dir})
	if startErr != nil {
		os.RemoveAll(dir)
		return "", "", nil, startErr
	}
	return s.ClientURL(), fmt.Sprintf("NATS is embedded, nats-server %s in this process: %v", server.VERSION, err),
		func() { stopNATS(s); os.RemoveAll(dir) }, nil
}

// OwnNATS starts a NATS server with JetStream for this test alone. It ends with the test, and so does its store.
func OwnNATS(t testing.TB) *Server {
	t.Helper()
	s := natsServer(t)
	s.Start()
	return s
}

// EmbeddedNATS starts a NATS server in this process with the given options, on any free port if they name none. It
// ends with stop, or with the test.
func EmbeddedNATS(t testing.TB, o server.Options) (s *server.Server, stop func()) {
	t.Helper()
	s, err := serveNATS(o)
	testkit.Must(t, err)
	stop = sync.OnceFunc(func() { stopNATS(s) })
	t.Cleanup(stop)
	return s, stop
}

func serveNATS(o server.Options) (*server.Server, error) {
	o.Host, o.NoLog, o.NoSigs, o.Port = "127.0.0.1", o.LogFile == "", true, cmp.Or(o.Port, server.RANDOM_PORT)
	srv, err := server.NewServer(&o)
	if err != nil {
		return nil, fmt.Errorf("make an embedded NATS server: %w", err)
	}
	srv.ConfigureLogger()
	srv.Start()
	if !srv.ReadyForConnections(startWithin) {
		stopNATS(srv)
		return nil, errors.New("the embedded NATS server is not ready")
	}
	return srv, nil
}

func stopNATS(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/gofrs/flock"
	natsserver "github.com/nats-io/nats-server/v2/server"
)

// embeddedPort reads "embedded" or "embedded:PORT"; ok is false for anything else.
func embeddedPort(target string, def int) (port int, ok bool, err error) {
	rest, ok := strings.CutPrefix(target, "embedded")
	if !ok {
		return 0, false, nil
	}
	if rest == "" {
		return def, true, nil
	}
	port, err = strconv.Atoi(strings.TrimPrefix(rest, ":"))
	if err != nil || rest[0] != ':' || port < 0 || port > 65535 {
		return 0, true, errors.New("expected embedded or embedded:PORT")
	}
	return port, true, nil
}

// notEmbedded refuses an embedded server, for a command that is about one that runs.
func notEmbedded(flag, target string) error {
	if _, embedded, _ := embeddedPort(target, 0); embedded {
		return wrong(flag, target, "expected the URL of a running server, as `streamcounter dev` prints it")
	}
	return nil
}

// portTaken words a failed listen so that the person knows what to change.
func portTaken(flag string, addr string, err error) error {
	hint := ""
	if errors.Is(err, syscall.EADDRINUSE) {
		hint = "; another process listens there: stop it, or give another address with --" + flag
	}
	return blame(flag, fmt.Errorf("cannot listen on %s: %w%s", addr, err, hint))
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// startRedis runs an embedded Redis: miniredis, the well-kept one in Go. Its
// keys expire only as its clock is pushed, so a ticker pushes it.
func startRedis(port int) (addr string, stop func(), err error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(loopback(port)); err != nil {
		return "", nil, portTaken("redis", loopback(port), err)
	}
	// redis-cli asks for COMMAND DOCS when it is given its commands through a
	// pipe, and dies of what miniredis answers; an error makes it do without.
	m.Server().SetPreHook(func(c *miniserver.Peer, cmd string, args ...string) bool {
		if !strings.EqualFold(cmd, "COMMAND") {
			return false
		}
		c.WriteError("ERR unknown command 'COMMAND'")
		return true
	})
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case now := <-tick.C:
				m.FastForward(now.Sub(last))
				last = now
			case <-done:
				return
			}
		}
	}()
	return m.Addr(), func() {
		close(done)
		<-ended
		m.Close()
	}, nil
}

// startNATS runs an embedded NATS server with JetStream in dir, or in a
// temporary directory that it removes when it stops. Two servers in one
// directory would destroy each other's streams, so it is locked.
func startNATS(port int, dir string, log *slog.Logger) (url string, stop func(), err error) {
	// The server would only say that it is not ready; ask for the port first.
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return "", nil, portTaken("nats", loopback(port), err)
	}
	if port == 0 {
		port = l.Addr().(*net.TCPAddr).Port
	}
	if err := l.Close(); err != nil {
		return "", nil, err
	}
	temporary := dir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "streamcounter-nats-"); err != nil {
			return "", nil, fmt.Errorf("a directory for the embedded NATS: %w", err)
		}
	} else if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, blame("nats-store", err)
	}
	lock := flock.New(filepath.Join(dir, "streamcounter.lock"))
	switch ok, err := lock.TryLock(); {
	case err != nil:
		return "", nil, blame("nats-store", err)
	case !ok:
		return "", nil, blame("nats-store", fmt.Errorf("%s is in use by another embedded NATS", dir))
	}
	cleanUp := func() {
		if err := lock.Unlock(); err != nil {
			log.Warn("unlocking the store of the embedded NATS failed", "error", err)
		}
		if temporary {
			if err := os.RemoveAll(dir); err != nil {
				log.Warn("removing the temporary store of the embedded NATS failed", "dir", dir, "error", err)
			}
		}
	}
	s, err := natsserver.NewServer(&natsserver.Options{
		ServerName: "streamcounter", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true,
		NoLog:              true,
		JetStreamMaxMemory: -1, JetStreamMaxStore: -1,
	})
	if err != nil {
		cleanUp()
		return "", nil, fmt.Errorf("embedded NATS: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(5 * time.Second) {
		s.Shutdown()
		cleanUp()
		return "", nil, blame("nats", errors.New("the embedded NATS was not ready within 5s"))
	}
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
		cleanUp()
	}, nil
}

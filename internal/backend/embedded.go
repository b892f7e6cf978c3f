package backend

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/gofrs/flock"
	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/streamcounter/streamcounter/internal/embedded"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// Ports of the servers that dev embeds. They differ from the defaults, so that real servers can run beside them.
const DevRedisPort, DevNATSPort = 16379, 14222

// devHint returns a hint for a command that found no server at the default of its flag: dev uses other ports.
func devHint(flag, target string) string {
	def := settings.New()
	switch {
	case flag == "redis" && target == def.Redis.URL:
		return fmt.Sprintf("; beside `streamcounter dev` give --redis redis://%s", loopback(DevRedisPort))
	case flag == "nats" && target == def.NATS.URL:
		return fmt.Sprintf("; beside `streamcounter dev` give --nats nats://%s", loopback(DevNATSPort))
	}
	return ""
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// StartRedis runs an embedded Redis on a port of 127.0.0.1 (0: any). It is miniredis, a well maintained one in Go.
// Its keys expire only when its clock is moved forward, so a ticker does that.
func StartRedis(port int) (addr string, stop func(), err error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr(loopback(port)); err != nil {
		return "", nil, settings.PortTaken("redis", loopback(port), err)
	}
	if err := embedded.AddFunctions(m); err != nil {
		m.Close()
		return "", nil, fmt.Errorf("the embedded Redis: %w", err)
	}
	// redis-cli sends COMMAND DOCS when it reads its commands from a pipe, and crashes on the answer of miniredis.
	// After an error it works without that answer.
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

// StartNATS runs an embedded NATS server with JetStream in dir, or in a temporary directory that it removes when it
// stops. Two servers in one directory would destroy each other's streams, so the directory is locked.
func StartNATS(port int, dir string, log *slog.Logger) (url string, stop func(), err error) {
	// The server would only report that it is not ready, so check the port first.
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return "", nil, settings.PortTaken("nats", loopback(port), err)
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
		return "", nil, settings.Blame("nats-store", err)
	}
	lock := flock.New(filepath.Join(dir, "streamcounter.lock"))
	switch ok, err := lock.TryLock(); {
	case err != nil:
		return "", nil, settings.Blame("nats-store", err)
	case !ok:
		return "", nil, settings.Blame("nats-store", fmt.Errorf("%s is in use by another embedded NATS", dir))
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
		return "", nil, settings.Blame("nats", errors.New("the embedded NATS was not ready within 5s"))
	}
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
		cleanUp()
	}, nil
}

package streamtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	pollEvery   = 3 * time.Millisecond
	startWithin = 20 * time.Second
	loadWithin  = 3 * time.Minute // for a Redis that answers that it loads its data
)

var errLoading = errors.New("it loads its data")

// awaitRedis returns when Redis answers at addr. It returns an error if Redis has not answered within startWithin
// (loadWithin while it loads its data), or if gone is closed. If pid is not 0, it must be the pid of the server that
// answers: another server could have taken the port first.
func awaitRedis(addr string, pid int, gone <-chan struct{}) error {
	return await(addr, gone, func(conn net.Conn) error {
		if _, err := io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
			return err
		}
		lines := bufio.NewScanner(conn)
		for first := true; lines.Scan(); first = false {
			line := lines.Text()
			if first && strings.HasPrefix(line, "-LOADING") {
				return errLoading
			}
			if first && line != "+PONG" {
				return fmt.Errorf("it answers PING with %q", line)
			}
			if id, ok := strings.CutPrefix(line, "process_id:"); ok {
				if pid != 0 && id != strconv.Itoa(pid) {
					return fmt.Errorf("process %s answers there, not %d", id, pid)
				}
				return nil
			}
		}
		return errors.Join(errors.New("it closed the connection"), lines.Err())
	})
}

// awaitNATS returns when a NATS server with JetStream answers at addr.
func awaitNATS(addr string) error {
	return await(addr, nil, func(conn net.Conn) error {
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return err
		}
		if !strings.Contains(line, `"jetstream":true`) {
			return fmt.Errorf("no JetStream in its greeting %q", line)
		}
		return nil
	})
}

// await tries ask on new connections to addr until it succeeds.
func await(addr string, gone <-chan struct{}, ask func(net.Conn) error) error {
	began := time.Now()
	for {
		err := func() error {
			conn, err := net.DialTimeout("tcp", addr, time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			return ask(conn)
		}()
		if err == nil {
			return nil
		}
		within := startWithin
		if errors.Is(err, errLoading) {
			within = loadWithin
		}
		if time.Since(began) > within {
			return fmt.Errorf("no server at %s in %v: %w", addr, within, err)
		}
		select {
		case <-gone: // blocks forever if there is no process to watch
			return fmt.Errorf("the server for %s ended at its start", addr)
		case <-time.After(pollEvery):
		}
	}
}

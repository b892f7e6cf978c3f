package settings

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/redact"
)

// EmbeddedPort reads a target "embedded", whose port is def, or "embedded:PORT"; ok is false for anything else. The
// port is -1 if it cannot be one: validate refuses such a target.
func EmbeddedPort(target string, def int) (port int, ok bool) {
	rest, ok := strings.CutPrefix(target, "embedded")
	if !ok || rest == "" {
		return def, ok
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(rest, ":"), 10, 16)
	if err != nil || rest[0] != ':' {
		return -1, true
	}
	return int(n), true
}

// NotEmbedded refuses an embedded server as the target of a flag, for a command that needs a server that already
// runs.
func NotEmbedded(flag, target string) error {
	if _, embedded := EmbeddedPort(target, 0); embedded {
		return Wrong(flag, target, "expected the URL of a running server, as `streamcounter dev` prints it")
	}
	return nil
}

// validPort refuses an embedded server at a port that cannot be one.
func validPort(target string) error {
	if port, _ := EmbeddedPort(target, 0); port < 0 {
		return errors.New("expected embedded or embedded:PORT")
	}
	return nil
}

// validNATS also refuses a URL of another kind of server, which the NATS library would try forever. A command that
// needs no NATS has no target.
func validNATS(target string) error {
	if _, embedded := EmbeddedPort(target, 0); embedded || target == "" {
		return validPort(target)
	}
	if _, err := natsconn.Servers(target); err != nil {
		return fmt.Errorf("%s: %w", redact.URL(target), err)
	}
	return nil
}

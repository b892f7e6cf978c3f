package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/internal/redact"
)

// EmbeddedPort reads a target "embedded", whose port is def, or "embedded:PORT"; ok is false for anything else.
func EmbeddedPort(target string, def int) (port int, ok bool, err error) {
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

// NotEmbedded refuses an embedded server as the target of a flag, for a command that needs a server that already
// runs.
func NotEmbedded(flag, target string) error {
	if _, embedded, _ := EmbeddedPort(target, 0); embedded {
		return Wrong(flag, target, "expected the URL of a running server, as `streamcounter dev` prints it")
	}
	return nil
}

// natsSchemes refuses a URL of another kind of server, which the NATS library would try forever.
func natsSchemes(target string) error {
	for one := range strings.SplitSeq(target, ",") {
		scheme, _, found := strings.Cut(strings.TrimSpace(one), "://")
		if found && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			return fmt.Errorf("%s: expected nats://HOST:PORT, tls://, ws:// or wss://", redact.URL(target))
		}
	}
	return nil
}

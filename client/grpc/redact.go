package grpc

import (
	"net"
	"strings"

	"github.com/streamcounter/streamcounter/internal/redact"
)

// shortest is how long a host without a port must be to be hidden in a message. A host of one or two letters would
// hide parts of other words.
const shortest = 4

// redactor removes from messages the parts of a target that may be secret. gRPC quotes targets whole or in parts.
func redactor(target string) *strings.Replacer {
	shown := redact.URL(target)
	if shown == target {
		return strings.NewReplacer()
	}
	const hidden = "…"
	pairs := []string{target, shown}
	rest := target
	if _, after, ok := strings.Cut(rest, "://"); ok {
		authority, endpoint, ok := strings.Cut(after, "/")
		if ok && authority != "" {
			pairs = append(pairs, authority, hidden)
		}
		if rest = endpoint; !ok {
			rest = after
		}
	} else if scheme, after, ok := strings.Cut(rest, ":"); ok && scheme == "unix" {
		rest = after
	}
	if len(rest) > 0 {
		pairs = append(pairs, rest, hidden)
	}
	if host, _, err := net.SplitHostPort(rest); err == nil && len(host) >= shortest {
		pairs = append(pairs, host, hidden)
	}
	return strings.NewReplacer(pairs...)
}

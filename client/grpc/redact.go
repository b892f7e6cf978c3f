package grpc

import (
	"net"
	"strings"

	"github.com/streamcounter/streamcounter/internal/redact"
)

// shortest is how long a host without a port must be to be hidden in a message: one of
// a letter or two would take letters out of its words.
const shortest = 4

// redactor takes out of messages what stands in a target and may be a secret. gRPC
// quotes targets whole or in parts.
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

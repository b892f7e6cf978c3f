// Package redact makes a text that may hold a password fit to be shown: what is
// not certain to be harmless is left out. Read redact.go; there is no other file.
package redact

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// ErrNoURL stands in for what a parser says of a URL that it cannot read, since
// that quotes a part of it, and any part can be of a password.
var ErrNoURL = errors.New("not a URL")

const (
	hidden = "…"
	masked = "xxxxx" // as net/url has it
)

var (
	schemes = []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix", "nats", "tls", "ws", "wss",
		"http", "https", "grpc", "grpcs", "dns", "passthrough"}
	// A name without a password may be a token, so a name is shown only beside one.
	userForm = regexp.MustCompile(`^([A-Za-z0-9._~-]*):[^/?#]+$`)
	hostForm = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(:[0-9]{1,5})?$`)
	pathForm = regexp.MustCompile(`^[A-Za-z0-9._:/-]*$`)
	database = regexp.MustCompile(`^/?[0-9]*$`)
	embedded = regexp.MustCompile(`^embedded(:[0-9]{1,5})?$`)
)

// URL is target, a URL or several separated by commas, as messages may show it:
// scheme, hosts and path, the name of a user who has a password, "xxxxx" in place
// of passwords and tokens, and "?…" in place of a query. Of what is no URL, or
// could be read in two ways, it shows the scheme alone, or nothing.
func URL(target string) string {
	if embedded.MatchString(target) || isLocal(target) || target == "" {
		return target
	}
	parts := strings.Split(target, ",")
	scheme, _, _ := strings.Cut(parts[0], "://")
	if !slices.Contains(schemes, scheme) {
		return hidden
	}
	for i, part := range parts {
		prefix, rest, whole := strings.Cut(part, "://")
		if !whole {
			prefix, rest = scheme, part // redis://a:1,b:2
		}
		shown, ok := address(prefix, rest, whole)
		if !ok {
			return scheme + "://" + hidden
		}
		if whole {
			shown = prefix + "://" + shown
		}
		parts[i] = shown
	}
	return strings.Join(parts, ",")
}

// address is what stands after "://", without its secrets; ok is false where it is
// not clear which part is which.
func address(scheme, rest string, mayHaveUser bool) (shown string, ok bool) {
	if !slices.Contains(schemes, scheme) {
		return "", false
	}
	if user, after, found := strings.Cut(rest, "@"); found {
		if !mayHaveUser || strings.Contains(after, "@") || strings.ContainsAny(user, "/?#") {
			return "", false
		}
		shown, rest = masked+"@", after
		if m := userForm.FindStringSubmatch(user); m != nil {
			shown = m[1] + ":" + masked + "@"
		}
	}
	query := strings.IndexAny(rest, "?#")
	if query >= 0 {
		rest = rest[:query]
	}
	host, path := rest, ""
	if slash := strings.IndexByte(rest, '/'); slash >= 0 {
		host, path = rest[:slash], rest[slash:]
	}
	if !hostForm.MatchString(host) || host == "" && shown != "" && scheme != "unix" || strings.HasPrefix(host, ":") {
		return "", false // ":12" can be a password of which the host is missing
	}
	// The path of Redis and NATS is a number or nothing, so another one got there by mistake.
	known := pathForm
	if slices.Contains([]string{"redis", "rediss", "nats", "tls"}, scheme) {
		known = database
	}
	if !known.MatchString(path) {
		path = "/" + hidden
	}
	shown += host + path
	if query >= 0 {
		shown += "?" + hidden
	}
	return shown, true
}

// isLocal reports whether target is an IP address or localhost, with or without a
// port: of what has no scheme, all that is certain to be no password.
func isLocal(target string) bool {
	host, _, _ := strings.Cut(target, ":")
	if host == "localhost" && hostForm.MatchString(target) {
		return true
	}
	if _, err := netip.ParseAddrPort(target); err == nil {
		return true
	}
	_, err := netip.ParseAddr(target)
	return err == nil
}

// Error is err without the URL that package url and net/http put into theirs, and
// without the name that could not be looked up: a bare password reads as a host.
func Error(err error) error {
	var bad *url.Error
	var unknown *net.DNSError
	switch {
	case errors.As(err, &bad) && bad.Op == "parse":
		return ErrNoURL
	case errors.As(err, &bad):
		return Error(bad.Err)
	case errors.As(err, &unknown):
		return errors.New("its host cannot be resolved: " + unknown.Err)
	}
	return err
}

// Login leaves out what stands before the last @ of a word, which may be a password. Unlike URL it keeps the rest,
// whatever it is.
func Login(word string) string {
	if i := strings.LastIndex(word, "@"); i >= 0 {
		return hidden + word[i:]
	}
	return word
}

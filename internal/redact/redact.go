// Package redact makes a text that may contain a password safe to show: it leaves out every part that is not
// certainly harmless. Read redact.go; there is no other file.
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

// ErrNoURL replaces the error of a parser for a URL that it cannot read. That error quotes a part of the URL, and any
// part may belong to a password.
var ErrNoURL = errors.New("not a URL")

const (
	hidden = "…"
	masked = "xxxxx" // as in net/url
)

var (
	schemes = []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix", "nats", "tls", "ws", "wss",
		"http", "https", "grpc", "grpcs", "dns", "passthrough"}
	// A name without a password may be a token, so a name is shown only together with a password.
	userForm = regexp.MustCompile(`^([A-Za-z0-9._~-]*):[^/?#]+@$`)
	pathForm = regexp.MustCompile(`^[A-Za-z0-9._:/-]*$`)
	database = regexp.MustCompile(`^/?[0-9]*$`)
	words    = regexp.MustCompile(`^(|(embedded|localhost)(:[0-9]{1,5})?)$`)
	// A user with @, a host, a path and a query. Only one @ may be there.
	addressForm = regexp.MustCompile(`^([^@/?#]*@)?((?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::[0-9]{1,5})?)` +
		`(/[^@?#]*)?([?#][^@]*)?$`)
)

// URL returns target, a URL or several separated by commas, in a form that messages may show: scheme, hosts and path,
// the name of a user who has a password, "xxxxx" in place of passwords and tokens, and "?…" in place of a query. If
// target is not a URL, or could be read in two ways, URL returns only the scheme, or nothing of it.
func URL(target string) string {
	if words.MatchString(target) || isAddress(target) {
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

// address returns the part after "://", without its secrets. ok is false if it is not clear which part is which.
func address(scheme, rest string, mayHaveUser bool) (shown string, ok bool) {
	m := addressForm.FindStringSubmatch(rest)
	if m == nil || !slices.Contains(schemes, scheme) {
		return "", false
	}
	user, host, path, query := m[1], m[2], m[3], m[4]
	switch {
	case user != "" && !mayHaveUser, user != "" && host == "" && scheme != "unix":
		return "", false
	case strings.HasPrefix(host, ":"): // it may be the password of a URL without a host
		return "", false
	}
	if named := userForm.FindStringSubmatch(user); named != nil {
		shown = named[1] + ":" + masked + "@"
	} else if user != "" {
		shown = masked + "@"
	}
	// The path of a URL of Redis or NATS is a number or empty. Another path may be a part of a password.
	known := pathForm
	if slices.Contains([]string{"redis", "rediss", "nats", "tls"}, scheme) {
		known = database
	}
	if !known.MatchString(path) {
		path = "/" + hidden
	}
	if query != "" {
		query = "?" + hidden
	}
	return shown + host + path + query, true
}

// isAddress reports whether target is an IP address, with or without a port. A text without a scheme may be a password,
// unless it is an address or one of a few words.
func isAddress(target string) bool {
	if _, err := netip.ParseAddrPort(target); err == nil {
		return true
	}
	_, err := netip.ParseAddr(target)
	return err == nil
}

// Error returns err without the URL that package url and net/http add to their errors, and without the name that
// could not be looked up: a bare password is read as a host.
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

// Login removes the text before the last @ of a word, which may be a password. Unlike URL it keeps the rest, whatever
// it is.
func Login(word string) string {
	if i := strings.LastIndex(word, "@"); i >= 0 {
		return hidden + word[i:]
	}
	return word
}

package api

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
)

// Network is the set of keys of a range of addresses: a key is a prefix, such as ip:, and after it an address of the
// range, or a smaller range (clients with IPv6 are counted as networks of 64 bits).
type Network struct {
	Prefix    string
	Addresses netip.Prefix
}

// String returns the network in the form that ParseNetwork reads: ip:203.0.113.0/24.
func (n Network) String() string { return escapes.Replace(n.Prefix) + n.Addresses.String() }

// Contains reports whether a key is the prefix and an address of the network, or a network within it. An IPv4 address
// within IPv6 (::ffff:203.0.113.9) is that IPv4 address.
func (n Network) Contains(key string) bool {
	rest, ok := strings.CutPrefix(key, n.Prefix)
	if !ok {
		return false
	}
	inner, ok := AddressesOf(rest)
	return ok && n.Addresses.Bits() <= inner.Bits() && n.Addresses.Contains(inner.Addr())
}

// AddressesOf reads the address or the network that a key has after its prefix; a zone (%eth0) is left out.
func AddressesOf(text string) (netip.Prefix, bool) {
	if !looksLikeAddress(text) {
		return netip.Prefix{}, false
	}
	if strings.IndexByte(text, '/') >= 0 {
		network, err := netip.ParsePrefix(text)
		return Unmapped(network), err == nil
	}
	address, err := netip.ParseAddr(text)
	address = address.Unmap().WithZone("")
	return netip.PrefixFrom(address, address.BitLen()), err == nil
}

// Unmapped returns a network of IPv4 addresses within IPv6 (::ffff:203.0.113.0/120) as that network of IPv4
// (203.0.113.0/24), because addresses are compared as IPv4. It returns other networks as they are.
func Unmapped(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// looksLikeAddress avoids the error that netip would allocate for other keys.
func looksLikeAddress(text string) bool {
	return len(text) >= 2 && len(text) <= 64 && strings.ContainsAny(text, ".:") &&
		(text[0] == ':' || strings.IndexByte("0123456789abcdefABCDEF", text[0]) >= 0)
}

// nearlyNetwork matches text that is meant as a network but may be mistyped: 10.0.0.0/33, 203.0.113/24, 10.0.0.0/08.
var nearlyNetwork = regexp.MustCompile(`^(\d+(\.\d+){2,4}|[[:xdigit:]:]*::[[:xdigit:]:.]*|` +
	`[[:xdigit:]]+(:[[:xdigit:]]+){7})/[\d.]*$`)

// ParseNetwork reads a network of addresses with a prefix; ok is false if the text is not a network. The prefix ends
// after the first character that is not a letter, a digit or a dot and is followed by a network. The error wraps
// ErrBadKey if the text has addresses but the network is ambiguous, or is a mistyped network.
func ParseNetwork(text string) (n Network, ok bool, err error) {
	plain, wild, slash, err := unescape(text)
	if err != nil || wild || !slash {
		return n, false, nil //nolint:nilerr // text that cannot be read is a key or a pattern, and refused as such
	}
	for i := range len(plain) {
		if i > 0 && !endsPrefix(plain[i-1]) {
			continue
		}
		p, err := netip.ParsePrefix(plain[i:])
		if err != nil && nearlyNetwork.MatchString(plain[i:]) && (i == 0 || plain[i-1] != '/') {
			return n, true, fmt.Errorf(`%w: %s is no network, expected one like ip:203.0.113.0/24; \/ is a / of a key`,
				ErrBadKey, Shorten(text))
		}
		if err != nil {
			continue
		}
		p = Unmapped(p)
		n = Network{plain[:i], p.Masked()}
		if p != n.Addresses {
			return n, true, fmt.Errorf("%w: %s has bits after its first %d, expected %s", ErrBadKey, Shorten(text),
				p.Bits(), Shorten(n.String()))
		}
		if i > 0 && ValidateKey(n.Prefix) != nil || len(text) > MaxKeyBytes {
			return n, true, fmt.Errorf("%w: the prefix of the network %s", ErrBadKey, Shorten(text))
		}
		return n, true, nil
	}
	return n, false, nil
}

func endsPrefix(c byte) bool {
	letter := c|0x20 >= 'a' && c|0x20 <= 'z'
	return !letter && (c < '0' || c > '9') && c != '.'
}

// unescape removes the escapes from a target. wild: it has an unescaped * or ?; slash: its last slash is unescaped.
func unescape(text string) (plain string, wild, slash bool, err error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		escaped := text[i] == '\\'
		if escaped {
			if i++; i == len(text) {
				return "", false, false, fmt.Errorf(`%w: %s ends with \, expected a character after it`, ErrBadKey,
					Shorten(text))
			}
		}
		switch {
		case text[i] == '/':
			slash = !escaped
		case !escaped && (text[i] == '*' || text[i] == '?'):
			wild = true
		}
		b.WriteByte(text[i])
	}
	return b.String(), wild, slash, nil
}

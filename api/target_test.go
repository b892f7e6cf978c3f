package api_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/streamcounter/streamcounter/api"
)

// A target is read as a key, a pattern or a network, and its text is read as the same target again.
func TestTargets(t *testing.T) {
	for text, want := range map[string]string{
		"ip:203.0.113.0/24": "network ip: 203.0.113.0/24", "203.0.113.0/24": "network  203.0.113.0/24",
		"ip:2001:db8::/32": "network ip: 2001:db8::/32", "a/ip=10.0.0.0/8": "network a/ip= 10.0.0.0/8",
		"tenant:7:ip:10.0.0.0/8": "network tenant:7:ip: 10.0.0.0/8", "ip:0.0.0.0/0": "network ip: 0.0.0.0/0",
		"ip:::ffff:10.0.0.0/104": "network ip: 10.0.0.0/8",
		`a\*b:10.0.0.0/8`:        "network a*b: 10.0.0.0/8",
		"ip:10.0.0.0/33":         "", "ip:203.0.113/24": "", "ip:10.0.0.0/08": "", "ip:10.0.0.0/255.0.0.0": "",
		"203.0.113.0/33": "", "ip:2001:db8::/129": "", "ip:10.0.0.0/": "", `ip:10.0.0.0\/33`: "key ip:10.0.0.0/33",
		"path:/1.2.3/4": "key path:/1.2.3/4", "user:1:2:3/4": "key user:1:2:3/4", "v:1.2/3": "key v:1.2/3",
		"ip10.0.0.0/8":   "key ip10.0.0.0/8",
		`ip:10.0.0.0\/8`: "key ip:10.0.0.0/8",
		"ip:10.0.0.0/8 ": "key ip:10.0.0.0/8 ", "ip:fe80::%eth0/64": "key ip:fe80::%eth0/64",
		"ip:10.0.0.0": "key ip:10.0.0.0",
		"ip:*.0/24":   "pattern ip:*.0/24", "ip:10.0.0.1/8": "", "ip:2001:db8::1/32": "",
		"user:42": "key user:42", "tenant:acme:*": "pattern tenant:acme:*", "a?": "pattern a?", `a\*b`: "key a*b",
		`a\\b`: `key a\b`, `a\**`: `pattern a\**`, `\u`: "key u",
		"": "", `a\`: "", "a\n*": "", "\xff*": "", "a\n": "", strings.Repeat("a", 512) + "*": "",
		strings.Repeat("a", 513): "",
	} {
		key, several, err := api.ParseTarget(text)
		var got string
		if n, ok, _ := api.ParseNetwork(several); ok {
			got = "network " + n.Prefix + " " + n.Addresses.String()
		} else if several != "" {
			got = "pattern " + several
		} else {
			got = "key " + key
		}
		if errors.Is(err, api.ErrBadKey) {
			got = ""
		}
		if got != want {
			t.Errorf("%s is %q, want %q (%v)", text, got, want, err)
		}
		if err != nil {
			continue
		}
		again := several
		if several == "" {
			again = api.TargetOfKey(key)
		}
		if k, s, err := api.ParseTarget(again); k != key || s != several || err != nil {
			t.Errorf("%s is named %s, which is %q %q, %v", text, again, k, s, err)
		}
	}
}

// A network contains the keys of its addresses and of the networks within it, such as the /64 of a client with IPv6.
func TestANetworkContainsSmallerOnes(t *testing.T) {
	for key, want := range map[string]bool{
		"ip:2001:db8::1": true, "ip:2001:db8:1::/64": true, "ip:2001:DB8:1:0::/64": true, "ip:2001:db8::/32": true,
		"ip:2001:db8:1::/64x": false, "ip:2001:db8:1::/129": false, "ip:2001:db8:1::/": false, "ip:2001::/16": false,
		"ip:2001:db9::/64": false, "net:2001:db8::1": false, "ip:10.0.0.0/8": false,
	} {
		n, _, err := api.ParseNetwork("ip:2001:db8::/32")
		if got := n.Contains(key); err != nil || got != want {
			t.Errorf("%s: %t, want %t (%v)", key, got, want, err)
		}
	}
	if n, _, _ := api.ParseNetwork("ip:10.0.0.0/8"); !n.Contains("ip:::ffff:10.1.0.0/112") {
		t.Error("a network of IPv4 addresses within IPv6")
	}
}

// Every key has a target that means it alone.
func TestTargetOfKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.StringMatching(`[a-z*?\\:]{1,20}`).Draw(t, "key")
		got, pattern, err := api.ParseTarget(api.TargetOfKey(key))
		if got != key || pattern != "" || err != nil {
			t.Fatalf("%q: %q %q %v", key, got, pattern, err)
		}
	})
}

package api_test

import (
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// A target is read as a key, a pattern or a network, and its text is read as the same target again.
func TestTargetsOfNetworks(t *testing.T) {
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
		if err != nil {
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

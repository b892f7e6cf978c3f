package httpmw_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/streamcounter/streamcounter/client/httpmw"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
	netip.MustParsePrefix("::ffff:172.16.0.0/108")}

// A request whose client is not known has the empty key: it would share the proxy's limit with all others, and without
// a key it would pass. The story extractors.txt of check/httpapi has the other addresses, and proxies behind proxies.
func TestClientAddress(t *testing.T) {
	for _, c := range []struct{ remote, forwarded, key string }{
		{"192.0.2.1:5000", "198.51.100.7", "ip:192.0.2.1"}, // who is no proxy of ours can write what it likes
		{"10.1.1.1:5000", "203.0.113.9, 198.51.100.7, 10.2.2.2", "ip:198.51.100.7"},
		{"172.17.1.1:5000", "2001:db8:1:2::9", "ip:2001:db8:1:2::/64"},
		{"10.1.1.1:5000", "198.51.100.7, unknown", ""},
		{"@", "198.51.100.7", ""},
	} {
		key, ok := httpmw.ClientAddress("ip:", proxies...)(request(c.remote, "/", "X-Forwarded-For", c.forwarded))
		if key != c.key || !ok {
			t.Errorf("from %s for %s: %q, %t, want %q", c.remote, c.forwarded, key, ok, c.key)
		}
	}
}

// request is one of a client at an address, with headers: a name, and its values.
func request(remote, path, name string, values ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr, r.URL.Path = remote, path
	r.Header[name] = values
	return r
}

func TestSkippedAddresses(t *testing.T) {
	skip := httpmw.Addresses([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("::ffff:203.0.113.0/120")}, proxies...)
	for remote, want := range map[string]bool{"192.0.2.9:1": true, "203.0.113.9:1": true, "198.51.100.1:1": false,
		"@": false} {
		if skip(request(remote, "/", "X-Forwarded-For")) != want {
			t.Errorf("%s: want %t", remote, want)
		}
	}
	if skip(request("198.51.100.1:1", "/", "X-Forwarded-For", "192.0.2.9")) {
		t.Error("anybody can be let pass by a header")
	}
}

// A test of check/access has the spellings of paths.
func TestPathPrefixAndFirst(t *testing.T) {
	key := httpmw.First(httpmw.Header("X-Key", "user:"), httpmw.PathPrefix("path:", 2))
	for path, want := range map[string]string{
		"/v1/users/42": "path:/v1/users", "/v1": "path:/v1", "/": "path:/", "/v1/../v2/x/y": "",
		"//a;x//b//c": "path:/a/b",
	} {
		if got, ok := key(request("@", path, "X-Key")); !ok || got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got, _ := key(request("@", "/v1/users/42", "X-Key", "7")); got != "user:7" {
		t.Errorf("%q, want the header's", got)
	}
	if got, ok := httpmw.PathPrefix("path:", -1)(request("@", "/v1/users/42", "X-Key")); !ok || got != "path:/" {
		t.Errorf("no segments: %q, %t", got, ok)
	}
	if got, ok := httpmw.Header("host", "site:")(request("@", "/", "X-Key")); !ok || got != "site:example.com" {
		t.Errorf("the host: %q, %t", got, ok) // of httptest.NewRequest
	}
	if _, ok := httpmw.First()(&http.Request{}); ok {
		t.Error("a key of nothing")
	}
}

// A header that is empty counts as missing. One that is given twice is refused: the handler could read the other one.
func TestHeaderTwiceOrEmpty(t *testing.T) {
	key := httpmw.First(httpmw.Header("X-Key", "user:"), httpmw.ClientAddress("ip:"))
	for _, c := range []struct {
		values []string
		want   string
	}{{nil, "ip:192.0.2.1"}, {[]string{""}, "ip:192.0.2.1"}, {[]string{"7"}, "user:7"}, {[]string{"7", "8"}, ""},
		{[]string{"", "8"}, ""}} {
		if got, ok := key(request("192.0.2.1:5000", "/", "X-Key", c.values...)); got != c.want || !ok {
			t.Errorf("%q: %q, %t, want %q", c.values, got, ok, c.want)
		}
	}
}

package main

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// append --format clf --values user,path takes these parts of a line as values, and leaves out missing ones. The key
// is the address or the user.
func TestValuesOfALog(t *testing.T) {
	long := "/" + strings.Repeat("x", 256)
	for line, want := range map[string]map[string]string{
		`192.0.2.1 - alice [17/May/2015:10:05:03 +0000] "GET /a/b?c=d HTTP/1.1" 200 2 "-" "agent"`: {"user": "alice",
			"path": "/a/b"},
		`192.0.2.1 - al ice [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`: {"user": "al ice", "path": "/"},
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "-" 400 0`:                   {},
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /q\"1 HTTP/1.1" 200 2`:  {"path": `/q\"1`},
		`192.0.2.1 - a\"b [17/May/2015:10:05:03 +0000] "GET /q\x221\\?\" HTTP/1.1" 200 2`: {
			"user": `a\"b`, "path": `/q\x221\\`},
		`192.0.2.1 - x [01/Jan/2020:00:00:00 +0000] \"GET [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`: {
			"user": `x [01/Jan/2020:00:00:00 +0000] \"GET`, "path": "/"},
		// Traefik writes a quote as it is.
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /q"1 HTTP/1.1" 200 2`: {"path": "/q"},
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET /q`:                   {"path": "/q"},
		// A part that cannot be a value is left out.
		`192.0.2.1 - bob [17/May/2015:10:05:03 +0000] "GET ` + long + ` HTTP/1.1" 200 2`: {"user": "bob"},
	} {
		e, skip, err := logForm{key: "ip", values: []string{"user", "path"}}.line(line)
		if err != nil || skip || e.Key != "ip:192.0.2.1" || !maps.Equal(e.Values, want) {
			t.Errorf("%s: %+v, %v, %v; want %v", line, e, skip, err, want)
		}
	}
	for line, want := range map[string]string{
		`192.0.2.1 - alice [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`: "user:alice",
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`:     "", // no user
	} {
		e, skip, err := logForm{key: "user", values: []string{"ip"}}.line(line)
		if err != nil || skip != (want == "") || e.Key != want || !skip && e.Values["ip"] != "192.0.2.1" {
			t.Errorf("%s: %+v, %v, %v; want %s", line, e, skip, err, want)
		}
	}
	for _, bad := range []string{
		`1.1.1.1, 2.2.2.2 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`, // X-Forwarded-For as it came
		`1.1.1.1,2.2.2.2 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`,
		`example.com:80 1.1.1.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`, // a virtual host first
		`example.com:80 1.1.1.1 - al [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2`,
	} {
		if e, skip, err := (logForm{key: "ip"}).line(bad); skip || !errors.Is(err, api.ErrBadRequest) {
			t.Errorf("%s: %+v, %v, %v; want it refused", bad, e, skip, err)
		}
	}
}

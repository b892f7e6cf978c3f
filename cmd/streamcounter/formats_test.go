package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// append --format clf --values user,path takes these parts of a line as values, and leaves out missing ones. The key
// is the address or the user.
func TestValuesOfALog(t *testing.T) {
	// Some servers write a quote as it is. A part that cannot be a value, such as a long one, is left out.
	for line, want := range testkit.Rows(t, "testdata/values") {
		e, skip, err := logForm{key: "ip", values: []string{"user", "path"}}.line(line)
		if err != nil || skip || e.Key != "ip:192.0.2.1" || fmt.Sprint(e.Values) != want {
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
	for host, want := range map[string]string{"2001:db8:7::1": "2001:db8:7::/64", "::ffff:192.0.2.1": "192.0.2.1",
		"fe80::1%eth0": "fe80::/64", "client.example": "client.example"} { // as checks count it
		e, _, err := logForm{key: "ip", values: []string{"ip"}}.line(host + ` - - [17/May/2015:10:05:03 +0000] "GET`)
		if err != nil || e.Key != "ip:"+want || e.Values["ip"] != want {
			t.Errorf("%s: %+v, %v; want %s", host, e, err, want)
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

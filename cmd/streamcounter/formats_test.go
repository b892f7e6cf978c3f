package main

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
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
		// Some servers write a quote as it is.
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

// append and compare say how many lines have no user, which is their key.
func TestLinesWithoutAUser(t *testing.T) {
	t.Parallel()
	const log = `192.0.2.1 - alice [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2

192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2
192.0.2.2 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 2
`
	redis, says := "redis://"+streamtest.EmbeddedRedis(t).Addr(), "2 lines without a user skipped"
	for _, line := range []string{"append --format clf --key user --redis " + redis,
		"compare --clf - --key user --algorithms in-process"} {
		if code, out, errs := runProgram(t, log, strings.Fields(line)...); code != 0 || !strings.Contains(errs, says) {
			t.Errorf("%s: exit code %d, want 0 and %q\n%s%s", line, code, says, out, errs)
		}
	}
	var sum struct{ Events, Skipped int }
	_, out, _ := runProgram(t, log, "append", "--format", "clf", "--key", "user", "--json", "--redis", redis)
	testkit.Must(t, json.Unmarshal([]byte(out), &sum))
	if sum.Events != 1 || sum.Skipped != 2 {
		t.Errorf("%s, want 1 event and 2 skipped", out)
	}
}

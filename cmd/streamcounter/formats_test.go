package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/forwarded"
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

// FuzzPlainLine: a valid KEY or KEY COUNT is used unchanged, and every other line is an error.
func FuzzPlainLine(f *testing.F) {
	for _, line := range []string{"user:42 3", "user:42", "", " \t", "a 0", "a -1", "a 1.5", "a 1000000001", "a 5 6",
		"\xff 1", "a\u00a0b 2", "a\u20283", "\x00", "5", "5 5", "a +7", strings.Repeat("k", 513), "é 1\r"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		e, skip, err := plainLine(line)
		fields := strings.Fields(line)
		if skip != (len(fields) == 0) {
			t.Fatalf("%q: skip %t", line, skip)
		}
		if skip {
			return
		}
		n, ok := int64(1), len(fields) <= 2
		if len(fields) == 2 {
			var bad error
			n, bad = strconv.ParseInt(fields[1], 10, 64)
			ok = bad == nil && n >= 1 && n <= 1_000_000_000 && strconv.FormatInt(n, 10) == fields[1]
		}
		ok = ok && api.ValidateKey(fields[0]) == nil
		if (err == nil) != ok || ok && (e.Key != fields[0] || e.Count != n) {
			t.Fatalf("%q: %+v, %v", line, e, err)
		}
		wantShort(t, err)
	})
}

// FuzzLogLine: a line of a web server's log becomes an event of its first word, or an error; with its time or
// without.
func FuzzLogLine(f *testing.F) {
	for _, line := range []string{
		`83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 203023 "-" "Mozilla/5.0"`,
		`::1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326`,
		`host - a b c [x [10/Oct/2000:13:55:36 -0700] "`, `- - - [31/Feb/2015:10:05:03 +0000] "`, `h - - [] "`,
		`h [a] "`, "\xff - - [17/May/2015:10:05:03 +0000] \"", "h\x00 - - [17/May/2015:10:05:03 +0000] \"",
		`h - - [17/May/99999:10:05:03 +0000] "`, " ", `h - - [17/May/0000:10:05:03 +9999] "`,
		strings.Repeat("k", 510) + ` - - [17/May/2015:10:05:03 +0000] "`,
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		form := logForm{key: "ip", values: []string{"user", "path"}}
		e, skip, err := form.line(line)
		if skip != (strings.TrimSpace(line) == "") {
			t.Fatalf("%q: skip %t", line, skip)
		}
		wantShort(t, err)
		if err == nil && !skip {
			host, _, _ := strings.Cut(line, " ")
			if a, err := netip.ParseAddr(host); err == nil {
				host = forwarded.Caller(a, 64)
			}
			if e.Key != "ip:"+host || e.Count != 1 || e.Validate() != nil {
				t.Fatalf("%q: %+v", line, e)
			}
		}
		at, r, skip2, err2 := form.timed(line)
		wantShort(t, err2)
		if skip2 != skip || err != nil && err2 == nil || err2 == nil && r.Key != e.Key {
			t.Fatalf("%q: with its time %v %q %t %v, without %+v %t %v", line, at, r.Key, skip2, err2, e, skip, err)
		}
	})
}

// wantShort: an error about a line is one short line, however long or odd the input is.
func wantShort(t *testing.T, err error) {
	t.Helper()
	if err != nil && (len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\r\x00\x1b")) {
		t.Fatalf("an error to be shown: %q", err)
	}
}

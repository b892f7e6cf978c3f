package redact_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A text after a comma is a host, if it has the form of one.
func TestURL(t *testing.T) {
	for target, want := range testkit.Rows(t, "testdata/urls") {
		if got := redact.URL(target); got != want {
			t.Errorf("%q is shown as %q, want %q", target, got, want)
		}
	}
}

func TestError(t *testing.T) {
	_, unreadable := url.Parse("redis://user:hunter2") //lint:ignore SA1007 it is to be refused
	_, refused := http.Get("http://hunter2@127.0.0.1:1/?password=hunter2")
	unknown := &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "hunter2"}}
	for name, err := range map[string]error{"parse": unreadable, "get": refused, "look-up": unknown} {
		for _, e := range []error{err, fmt.Errorf("reading: %w", err)} {
			if got := redact.Error(e).Error(); !strings.Contains(e.Error(), "hunter2") ||
				strings.Contains(got, "hunter2") {
				t.Errorf("%s: %v is shown as %s", name, e, got)
			}
		}
	}
	if plain := errors.New("plain"); redact.Error(plain) != plain || redact.Error(nil) != nil {
		t.Error("another error is changed")
	}
}

// FuzzURL: a secret is not shown, whatever is around it, if it is a user's password or token, a query, or part of a
// text that is not a URL.
func FuzzURL(f *testing.F) {
	for _, s := range [][3]string{
		{"redis://user:", "hunter2", "@10.0.0.1:6379/0"}, {"rediss://:", "pa/ss", "@host"},
		{"redis://u:", "p@ss@", "@host:1"}, {"redis+sentinel://u:", "p#w?x", "@a:1,b:2/main"},
		{"nats://", "token", "@h:4222"}, {"", "u:pw", "@h:1"}, {"redis://u:", "p:q", "@h:1,redis://h:2"},
		{"redis://h:1,redis://u:", "second", "@h:2/3?db=x"}, {"", "bare", ""},
		{"redis://h?password=", "p@ss", ""}, {"redis://u:", "1,2", "@h"}, {"nats://", "a,b", "@h,h:2"},
		{"redis://h/", "p", "?x"}, {"unix://u:", "sock", "@/tmp/x"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, before, secret, after string) {
		secret = "s3cr3t" + secret + "s3cr3t"
		// Before a secret there is a name and a colon, a scheme, "?" or nothing; after it there is an @ or nothing.
		if i := strings.LastIndexAny(before, "/@,"); before != "" && !strings.HasSuffix(before, ":") &&
			!strings.HasSuffix(before, "?password=") && i != len(before)-1 {
			return
		}
		if !strings.HasPrefix(after, "@") && !strings.Contains(before, "?") && before != "" {
			return // a host
		}
		if shown := redact.URL(before + secret + after); strings.Contains(shown, "s3cr3t") {
			t.Fatalf("%q is shown as %q", before+secret+after, shown)
		}
	})
}

// A word that may be a URL without a scheme keeps only what cannot be a password.
func TestLogin(t *testing.T) {
	for word, want := range map[string]string{"true": "true", "me:s3cr3t@redis:6379": "…@redis:6379",
		"redis://me:s3c@r3t@h": "…@h", "@": "…@"} {
		if got := redact.Login(word); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

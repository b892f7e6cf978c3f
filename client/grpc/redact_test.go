package grpc

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
)

// A target without an address, and the URL of an HTTP server, are refused at once.
func TestTargetsThatAreNone(t *testing.T) {
	for _, target := range []string{"", "http://127.0.0.1:8082", "https://h", "HTTP://h"} {
		if _, err := New(target, Config{}); err == nil {
			t.Errorf("%q was taken", target)
		}
	}
}

// No error shows a password that was given in place of a target. An address that certainly has no password is shown,
// because it says what was tried.
func TestNoErrorShowsASecret(t *testing.T) {
	for _, target := range []string{
		"127.0.0.1:1", "hunter2", "hunter2:8082", "user:hunter2@127.0.0.1:1", "user:hunter2@localhost",
		"dns:///user:hunter2@127.0.0.1",
		"http://user:hunter2@127.0.0.1:1", "passthrough:///user:hunter2@127.0.0.1:1", "hunter2://x/hunter2",
		"dns://user:hunter2@host/x", "unix:hunter2", "%zz:hunter2", "hunter2/%zz", "passthrough:///x?hunter2",
	} {
		said := func(err error) {
			t.Helper()
			if err == nil || strings.Contains(err.Error(), "hunter2") ||
				target == "127.0.0.1:1" && !strings.Contains(err.Error(), target) {
				t.Errorf("%s: %v", target, err)
			}
		}
		c, err := New(target, Config{})
		if err != nil {
			said(err)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = c.Check(ctx, api.CheckRequest{Key: "a", Cost: 1})
		said(err)
		cancel()
		for _, sent := range []bool{false, true} {
			err := c.errorOf(t.Context(), status.Error(codes.Unavailable, "lookup "+target+" failed"), sent)
			said(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

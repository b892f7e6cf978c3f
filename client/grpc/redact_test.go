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

// No error shows a password that was given in place of a target.
func TestNoErrorShowsASecret(t *testing.T) {
	for _, target := range []string{
		"hunter2", "hunter2:8082", "user:hunter2@127.0.0.1:1", "user:hunter2@localhost",
		"dns:///user:hunter2@127.0.0.1",
		"http://user:hunter2@127.0.0.1:1", "passthrough:///user:hunter2@127.0.0.1:1", "hunter2://x/hunter2",
		"dns://user:hunter2@host/x", "unix:hunter2", "%zz:hunter2", "hunter2/%zz", "passthrough:///x?hunter2",
	} {
		said := func(err error) {
			t.Helper()
			if err == nil || strings.Contains(err.Error(), "hunter2") {
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
			err := c.errorOf(status.Error(codes.Unavailable, "lookup "+target+" failed"), sent)
			said(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An address that certainly has no password is shown, because it says what was tried.
func TestAnAddressIsShown(t *testing.T) {
	c, err := New("127.0.0.1:1", Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Check(t.Context(), api.CheckRequest{Key: "a", Cost: 1}); err == nil ||
		!strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("%v, expected the address in it", err)
	}
}

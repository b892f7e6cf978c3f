package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// onFirstRead runs before the first read of a Reader.
type onFirstRead struct {
	io.Reader
	do func()
}

func (r *onFirstRead) Read(p []byte) (int, error) {
	if r.do != nil {
		r.do()
		r.do = nil
	}
	return r.Reader.Read(p)
}

// All replies are lost while a file is appended. Each line is in the summary once, and the first failure is reported
// once.
func TestAppendWithoutReplies(t *testing.T) {
	appendPatience = time.Millisecond
	t.Cleanup(func() { appendPatience = 15 * time.Second })
	const lines = 20_000 // several flushes
	proxy := streamtest.NewProxy(t, streamtest.Connect(t, streamtest.Redis(t)).Options().Addr)
	in := strings.NewReader(strings.Repeat("user:1\nuser:2\nuser:3\nuser:4\n", lines/4))
	var out, errs bytes.Buffer
	code := runOn(t.Context(), &onFirstRead{in, func() { proxy.LoseReplies(lines) }}, &out, &errs, "append", "--json",
		"--redis", "redis://"+proxy.Addr, "--prefix", streamtest.Prefix(t))
	var sum appendSummary
	testkit.Must(t, json.Unmarshal(out.Bytes(), &sum))
	if code != 1 || sum.Events != 0 || sum.Refused+sum.Unknown != lines {
		t.Errorf("exit code %d, summary %+v, want 1 and all %d lines refused or unknown", code, sum, lines)
	}
	if n := strings.Count(errs.String(), "warning: "); n != 1 {
		t.Errorf("%d failures are reported, want 1:\n%s", n, errs.String())
	}
}

// A Redis that is away at the start is waited for: here it starts when append reads ahead.
func TestAppendAwaitsRedis(t *testing.T) {
	own := streamtest.OwnRedis(t)
	own.Stop()
	var errs testkit.Log
	root := newRoot()
	root.SetIn(&onFirstRead{strings.NewReader("user:1 3\n"), own.Start})
	root.SetErr(&errs)
	code := run(t.Context(), root, []string{"append", "--redis", own.URL()})
	for _, says := range []string{"warning: ", "events wait until Redis answers", "\nRedis answers\n", "appended 1 "} {
		if code != 0 || !strings.Contains(errs.String(), says) {
			t.Errorf("exit code %d, want 0 and %q:\n%s", code, says, errs.String())
		}
	}
}

// A slow Redis may take any time as long as it stores events.
func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(15 * time.Second)
		defer w.end(nil)
		time.Sleep(time.Hour) // a slow input
		w.watch()
		for range 10 {
			time.Sleep(14 * time.Second)
			w.feed()
		}
		began := time.Now()
		if w.ctx.Err() != nil {
			t.Fatal("it ended while there was progress")
		}
		<-w.ctx.Done()
		if idle := time.Since(began); idle != 15*time.Second {
			t.Errorf("it ended after %s without progress, want 15s", idle)
		}
	})
}

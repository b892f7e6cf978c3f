package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
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
	appendTimeout = time.Millisecond
	t.Cleanup(func() { appendTimeout = 15 * time.Second })
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

// appending is an append that reads what the test writes.
type appending struct {
	io.WriteCloser
	out, errs testkit.Log
	code      chan int
}

func startAppend(t *testing.T, ctx context.Context, addr string, connected func()) *appending {
	in, write := io.Pipe()
	a := &appending{WriteCloser: write, code: make(chan int, 1)}
	go func() {
		a.code <- runOn(ctx, &onFirstRead{in, connected}, &a.out, &a.errs, "append", "--json", "--redis",
			"redis://"+addr)
	}()
	return a
}

func (a *appending) lines(t *testing.T, n int) {
	for i := range n {
		_, err := fmt.Fprintf(a, "user:%d\n", i%7)
		testkit.Must(t, err)
	}
}

func (a *appending) says(t *testing.T, text string, times int) {
	t.Helper()
	streamtest.Eventually(t, fmt.Sprintf("it says %q %d times", text, times), func() (bool, string) {
		return strings.Count(a.errs.String(), text) == times, a.errs.String()
	})
}

func (a *appending) ends(t *testing.T, code, stored, lost, unknown int) {
	t.Helper()
	var sum appendSummary
	got := <-a.code
	testkit.Must(t, json.Unmarshal([]byte(a.out.String()), &sum))
	if got != code || sum.Events != stored || sum.Refused != lost || sum.Unknown != unknown {
		t.Errorf("exit code %d, %+v, want %d, %d stored, %d not and %d perhaps\n%s", got, sum, code, stored, lost,
			unknown, a.errs.String())
	}
}

// Events wait for the end of an outage, and none is lost. It says when one begins and ends.
func TestAppendDuringOutages(t *testing.T) {
	t.Parallel()
	m := streamtest.EmbeddedRedis(t)
	a := startAppend(t, t.Context(), m.Addr(), m.Close)
	a.lines(t, 100)
	a.says(t, "connection refused", 1)
	a.lines(t, 100)
	testkit.Must(t, m.Restart())
	a.says(t, "Redis stores events again", 1)
	m.SetError("OOM command not allowed")
	a.lines(t, 100)
	a.says(t, "OOM", 1)
	m.SetError("")
	a.says(t, "Redis stores events again", 2)
	a.lines(t, 10)
	testkit.Must(t, a.Close())
	a.ends(t, 0, 310, 0, 0)
}

// Ctrl-C during an outage does not wait for its end, and the summary is true. Events that Redis would refuse again do
// not keep others waiting. After a lost reply, other events wait until Redis answers.
func TestAppendThatCannotStore(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	m := streamtest.EmbeddedRedis(t)
	a := startAppend(t, ctx, m.Addr(), m.Close)
	a.lines(t, 1)
	a.says(t, "connection refused", 1)
	interrupt()
	a.ends(t, 1, 0, 1, 0)
	if text := a.errs.String(); strings.Contains(text, "no event was stored for") {
		t.Errorf("it waited after Ctrl-C:\n%s", text)
	}

	testkit.Must(t, m.Restart())
	a = startAppend(t, t.Context(), m.Addr(), func() { m.SetError("WRONGTYPE Operation against a key") })
	a.lines(t, 1)
	a.says(t, "WRONGTYPE", 1)
	m.SetError("")
	a.lines(t, 100)
	testkit.Must(t, a.Close())
	a.ends(t, 1, 100, 1, 0)

	proxy := streamtest.NewProxy(t, m.Addr())
	a = startAppend(t, t.Context(), proxy.Addr, func() { proxy.LoseReplies(8) })
	a.lines(t, 1)
	a.says(t, "1 perhaps stored", 1)
	a.lines(t, 100)
	testkit.Must(t, a.Close())
	a.ends(t, 1, 100, 0, 1)
}

// Five lines were merged into two events, which are sent again: each line counts once, and as stored only if it is.
func TestEventsSentAgain(t *testing.T) {
	two := []api.Event{{Key: "a"}, {Key: "b"}}
	was := stream.Outcome{Appended: 10, Entries: 1, Refused: two, RefusedEvents: 5, UnknownEvents: 1}
	for _, c := range []struct {
		next                       stream.Outcome
		appended, refused, unknown int
	}{
		{stream.Outcome{Appended: 2}, 15, 0, 1},
		{stream.Outcome{Refused: two, RefusedEvents: 2}, 10, 5, 1},
		{stream.Outcome{Unknown: two, UnknownEvents: 2}, 10, 0, 6},
		{stream.Outcome{Appended: 1, Refused: two[1:], RefusedEvents: 1}, 11, 4, 1},
		{stream.Outcome{Appended: 1, Unknown: two[1:], UnknownEvents: 1}, 11, 0, 5},
		{stream.Outcome{Refused: two[:1], RefusedEvents: 1, Unknown: two[1:], UnknownEvents: 1}, 10, 4, 2},
	} {
		got := resent(was, c.next)
		if got.Appended != c.appended || got.RefusedEvents != c.refused || got.UnknownEvents != c.unknown ||
			len(got.Refused) != len(c.next.Refused) {
			t.Errorf("%+v: %+v", c.next, got)
		}
	}
}

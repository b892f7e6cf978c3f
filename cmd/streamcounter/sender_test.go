package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/stream"
)

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

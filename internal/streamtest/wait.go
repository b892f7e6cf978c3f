package streamtest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is far longer than a test that passes needs, however slow the machine.
const patience = 3 * time.Minute

// Eventually calls check every few milliseconds until it is done, and fails the test with the last state if that takes
// too long. It is the only way for a test to wait for something that no channel signals.
func Eventually(t testing.TB, what string, check func() (done bool, state string)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		done, state := check()
		if done {
			return
		}
		if !time.Now().Before(deadline) {
			t.Fatalf("%s: not within %v; last state: %s", what, patience, state)
		}
		time.Sleep(pollEvery)
	}
}

// EventuallyIs waits until a number is as wanted: N, or >N.
func EventuallyIs(t testing.TB, what, want string, number func() float64) {
	t.Helper()
	text, above := strings.CutPrefix(want, ">")
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, what+" is "+want, func() (bool, string) {
		is := number()
		return is == n && !above || above && is > n, fmt.Sprint(is)
	})
}

// EventuallyLogged waits until a log has a text so many times.
func EventuallyLogged(t testing.TB, log fmt.Stringer, text string, times int) {
	t.Helper()
	Eventually(t, "the log says "+text, func() (bool, string) {
		return strings.Count(log.String(), text) >= times, log.String()
	})
}

// Succeeds waits until do returns no error: a server on a busy machine may answer too late for a request.
func Succeeds(t testing.TB, what string, do func() error) {
	t.Helper()
	Eventually(t, what, func() (bool, string) {
		err := do()
		return err == nil, fmt.Sprint(err)
	})
}

package streamtest

import (
	"testing"
	"time"
)

// Eventually calls check every few milliseconds until it is done, and fails the test with the last state if that
// takes longer than within. It is the only way for a test to wait for something that no channel signals.
func Eventually(t testing.TB, within time.Duration, what string, check func() (done bool, state string)) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		done, state := check()
		if done {
			return
		}
		if !time.Now().Before(deadline) {
			t.Fatalf("%s: not within %v; last state: %s", what, within, state)
		}
		time.Sleep(pollEvery)
	}
}

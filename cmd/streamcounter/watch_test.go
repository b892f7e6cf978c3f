package main

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// The use of an in-flight window is not shown as a rate.
func TestUseOfAnInFlightWindow(t *testing.T) {
	tr := api.Transition{Rule: "job", Key: "job:a", State: api.StateThrottled, Level: api.LevelThrottled, Limit: 3,
		Used: 3, WindowMs: 60_000, InFlight: true}
	var windows, watched strings.Builder
	printWindows(&windows, []api.WindowState{{Limit: 3, Used: 3, EmptyMs: 30_000, NextFreeMs: 20_000,
		WindowKind: api.WindowKind{InFlight: true}}})
	printTransition(&watched, tr)
	for name, text := range map[string]string{
		"check": windows.String(), "watch": watched.String(),
		"keys history": entryText(api.HistoryEntry{Transition: &tr}),
		"keys throttled": throttledText(api.Throttled{Rule: "job", Key: "job:a", Limit: 3, Used: 3, WindowMs: 60_000,
			InFlight: true}),
	} {
		if !strings.Contains(text, "3 of 3 in flight") || strings.Contains(text, "per ") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// A key that reaches its limit is throttled, and its alert of 100 % says the same.
func TestWatchPrintsOneLineForACrossing(t *testing.T) {
	for _, c := range []struct {
		state api.State
		level int
		lines int
	}{
		{api.StateThrottled, api.LevelThrottled, 1}, {api.StateRaised, api.LevelThrottled, 0},
		{api.StateReleased, api.LevelThrottled, 1}, {api.StateCleared, api.LevelThrottled, 0},
		{api.StateRaised, 95, 1}, {api.StateCleared, 95, 1},
	} {
		var out strings.Builder
		printTransition(&out, api.Transition{Rule: "api", Key: "user:1", State: c.state, Level: c.level, Limit: 10,
			Used: 10, WindowMs: 60_000})
		if n := strings.Count(out.String(), "\n"); n != c.lines {
			t.Errorf("%s at %d %%: %d lines, want %d", c.state, c.level, n, c.lines)
		}
	}
}

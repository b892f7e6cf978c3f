package main

import "testing"

// A second holds what was asked for and answered in it, and not what may have been charged before it.
func TestMostInASecond(t *testing.T) {
	s := settings{BeginMs: 0, MeasureMs: 0, EndMs: 4000}
	for what, c := range map[string]struct {
		granted []([2]int32)
		most    int64
	}{
		"within":              {[][2]int32{{10, 10}, {500, 501}, {1009, 1009}}, 3},
		"a second apart":      {[][2]int32{{10, 10}, {500, 501}, {1010, 1010}}, 2},
		"asked for before it": {[][2]int32{{9, 12}, {500, 501}, {1011, 1011}}, 2},
	} {
		r := count([]record{{Granted: c.granted}}, s)
		if r.most != c.most {
			t.Errorf("%s: a second holds %d, want %d", what, r.most, c.most)
		}
	}
}

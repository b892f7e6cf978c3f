package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A count that grew by over a tenth is an error that names it. With another build of Redis, the figures are scaled by
// the reference.
func TestCompare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures.json")
	if err := os.WriteFile(path, []byte(`{"redis":"a","instructions":{"GCRA":100,"check":1000}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		redis       string
		gcra, check float64
		want        string
	}{
		{"a", 100, 1099, ""},
		{"a", 100, 500, ""},
		{"a", 100, 1101, "check: 1101 instructions, 1000 in"},
		{"b", 200, 2199, ""},
		{"b", 200, 2201, "check: 2201 instructions, 2000 in"},
		{"b", 50, 600, "check: 600 instructions, 500 in"},
	} {
		err := compare(path, figures{Redis: x.redis, Each: map[string]float64{reference: x.gcra, "check": x.check}})
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if err := compare(path, figures{Redis: "a", Each: map[string]float64{"new": 1}}); err == nil {
		t.Error("an operation without a figure passes")
	}
}

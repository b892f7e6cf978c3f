package faults

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
)

// verdict is what a run is judged by. A promise that many keys break is told once,
// with the story of the first of them.
type verdict struct {
	t      testing.TB
	rec    *record
	tap    *tap
	logs   map[string][]entry
	alerts map[string][]api.Transition
	broken map[string]int // what is said → how many keys
}

// fail says that key breaks a promise.
func (v *verdict) fail(key, format string, args ...any) {
	v.t.Helper()
	if v.broken == nil {
		v.broken = map[string]int{}
	}
	if v.broken[format]++; v.broken[format] > 1 {
		v.t.Fail()
		return
	}
	v.t.Errorf("%s\n%s", fmt.Sprintf(format, args...), v.story(key))
}

// end tells how many more keys there were of each.
func (v *verdict) end() {
	v.t.Helper()
	for format, n := range v.broken {
		if n > 1 {
			v.t.Logf("and %d more of: %s", n-1, format)
		}
	}
}

// charged returns how many units of a key were charged.
func (v *verdict) charged(key string) (units int64) {
	for _, e := range v.logs[key] {
		units += e.count
	}
	return units
}

func (v *verdict) published(key string) (list []moved) {
	for _, tr := range v.alerts[key] {
		list = append(list, movedOf(tr))
	}
	return list
}

// story is what happened to a key, in the order of Redis's clock, the last 25 lines.
func (v *verdict) story(key string) string {
	type line struct {
		ms   int64
		text string
	}
	var lines []line
	for _, e := range v.logs[key] {
		lines = append(lines, line{e.ms, fmt.Sprintf("counted %d, %d in all", e.count, e.total)})
	}
	for _, m := range v.tap.all()[key] {
		lines = append(lines, line{m.at, "in the outbox: " + m.String()})
	}
	for i, m := range v.published(key) {
		lines = append(lines, line{m.at, "published: " + m.String() + ", " + v.alerts[key][i].ID})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.ms, b.ms) })
	var b strings.Builder
	if n := len(lines) - 25; n > 0 {
		fmt.Fprintf(&b, "    … %d lines before\n", n)
		lines = lines[n:]
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "    %d  %s\n", l.ms, l.text)
	}
	return b.String()
}

// falls tells the keys whose windows end within seconds.
func falls(key string) bool {
	return limitOf(key) > 0 || slices.Contains([]string{"b", "d", "x"}, formOf(key))
}

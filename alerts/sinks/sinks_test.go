package sinks_test

import (
	"fmt"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// endpoint counts the requests that it gets, or takes.
type endpoint interface{ count() int }

// ready waits until the sinks of the file have their consumers: a new consumer reads only alerts from then on.
func (w *world) ready(endpoints ...endpoint) {
	w.t.Helper()
	before := make([]int, len(endpoints))
	for i, e := range endpoints {
		before[i] = e.count()
	}
	streamtest.Eventually(w.t, "each sink delivers", func() (bool, string) {
		w.publish(w.alert("ready", 80, api.StateRaised))
		for i, e := range endpoints {
			if e.count() == before[i] {
				return false, fmt.Sprintf("sink %d has sent nothing", i)
			}
		}
		return true, ""
	})
}

// of leaves out the alerts that ready published.
func of(list []api.Transition) (out []api.Transition) {
	for _, t := range list {
		if t.Key != "ready" {
			out = append(out, t)
		}
	}
	return out
}

func (r *receiver) awaitOf(n int) []api.Transition {
	r.t.Helper()
	var list []api.Transition
	streamtest.Eventually(r.t, fmt.Sprintf("%d alerts come", n), func() (bool, string) {
		all, attempts := r.taken()
		list = of(all)
		return len(list) >= n, fmt.Sprintf("%d came, by %d attempts", len(list), attempts)
	})
	return list
}

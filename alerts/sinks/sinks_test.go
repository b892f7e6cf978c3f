package sinks_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// pager starts a process that delivers to one receiver.
func (w *world) pager() (*receiver, *process) {
	w.t.Helper()
	r := newReceiver(w.t)
	w.sinks(w.webhook("pager", r, ""))
	p := w.start()
	w.ready(r)
	return r, p
}

// ready waits until the sinks of the file have their consumers: a new consumer reads only alerts from then on.
func (w *world) ready(receivers ...*receiver) {
	w.t.Helper()
	before := make([]int, len(receivers))
	for i, r := range receivers {
		_, before[i] = r.taken()
	}
	streamtest.Eventually(w.t, "each sink delivers", func() (bool, string) {
		w.publish(w.alert("ready", 80, api.StateRaised))
		for i, r := range receivers {
			if _, attempts := r.taken(); attempts == before[i] {
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

// An endpoint is down under load. The alerts that it missed come when it is back: all of them, signed (receiver
// verifies that), in order for each key. Meanwhile another sink gets all alerts. There are more alerts than a process
// holds.
func TestNothingIsLostWhileAnEndpointIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	sick, well := newReceiver(t), newReceiver(t)
	w.sinks(w.webhook("sick", sick, "") + w.webhook("well", well, ""))
	p := w.start()
	w.ready(sick, well)
	sick.answers(down)
	var all []api.Transition
	for i := range 2000 { // of 50 keys
		state := []api.State{api.StateRaised, api.StateCleared}[i/50%2]
		all = append(all, w.alert(fmt.Sprintf("user:%d", i%50), 80, state))
	}
	w.publish(all...)
	wantInOrder(t, well.awaitOf(len(all)), all) // while the other is down
	if list, _ := sick.taken(); len(of(list)) > 0 {
		t.Fatalf("%d came to the endpoint that is down", len(of(list)))
	}
	streamtest.Eventually(t, "the age of the oldest shows", func() (bool, string) {
		return p.oldest(t, "sick") > 0 && p.oldest(t, "well") == 0, fmt.Sprint(p.oldest(t, "sick"))
	})
	sick.answers(nil)
	wantInOrder(t, sick.awaitOf(len(all)), all)
	if n := p.count(t, "sick", "retried"); n == 0 {
		t.Error("no attempt is counted as retried")
	}
	if n := p.count(t, "well", "delivered"); n < len(all) {
		t.Errorf("%d counted as delivered, want %d", n, len(all))
	}
}

// An alert that the endpoint refuses permanently is counted and logged, and delays no other; an alert that it may
// accept later is tried again. Redirects are not followed.
func TestAnswersOfTheEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	r, p := w.pager()
	elsewhere, n := newReceiver(t), 0
	r.answers(func(key string, h http.ResponseWriter) bool {
		if key != "a" {
			return true
		}
		statuses := []int{http.StatusGone, http.StatusTemporaryRedirect, http.StatusUnauthorized}
		if n++; n > len(statuses) {
			return true
		}
		h.Header().Set("Location", elsewhere.URL)
		h.WriteHeader(statuses[n-1])
		return false
	})
	all := []api.Transition{w.alert("a", 80, api.StateRaised), w.alert("a", 95, api.StateRaised),
		w.alert("a", 80, api.StateCleared)}
	w.publish(all...)
	wantInOrder(t, r.awaitOf(2), all[1:])
	if d, e := p.count(t, "pager", "dropped"), p.count(t, "pager", "retried"); d != 1 || e != 2 {
		t.Errorf("%d dropped, %d retried, want 1 and 2", d, e)
	}
	if _, n := elsewhere.taken(); n > 0 {
		t.Error("a redirect was followed")
	}
	if text := w.log.String(); !strings.Contains(text, "gave up delivering") || !strings.Contains(text, all[0].ID) ||
		!strings.Contains(text, "410") {
		t.Errorf("the log does not name what was dropped:\n%s", text)
	}
}

// Each sink gets the alerts that match its filters, with its own text.
func TestFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	all, keys, levels, up := newReceiver(t), newReceiver(t), newReceiver(t), newReceiver(t)
	w.sinks(w.webhook("all", all, ", shadow: true") +
		w.webhook("keys", keys, `, keys: ["user:*", ready], rules: ["a?i"]`) +
		w.webhook("levels", levels, `, levels: [80, 100], text: "{{.Key}}={{.Level}} {{.Window}}"`) +
		w.webhook("up", up, ", send_resolved: false"))
	w.start()
	w.ready(all, keys, levels, up)
	list := []api.Transition{w.alert("user:1", 80, api.StateRaised), w.alert("tenant:1", 100, api.StateRaised),
		w.alert("user:1", 80, api.StateCleared), w.alert("user:1", 95, api.StateRaised),
		w.alert("user:9", 95, api.StateRaised)}
	list[3].Shadow = true
	w.publish(list...)
	wantInOrder(t, all.awaitOf(5), list)
	wantInOrder(t, keys.awaitOf(3), []api.Transition{list[0], list[2], list[4]})
	wantInOrder(t, levels.awaitOf(3), list[:3])
	wantInOrder(t, up.awaitOf(3), []api.Transition{list[0], list[1], list[4]})
	if text := levels.allTexts(); !strings.Contains(text, "tenant:1=100 1m") {
		t.Errorf("the texts are %s", text)
	}
}

// One of two processes delivers. The other waits, and takes over if the first is stopped or cut off. Nothing is lost,
// and each key stays in order.
func TestAnotherProcessTakesOver(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stopped", "cut off"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, streamtest.NATS(t))
			r, one := w.pager()
			two := w.start()
			all := w.raised(50)
			wantInOrder(t, r.awaitOf(50), all)
			if n := two.count(t, "pager", "delivered"); n != 0 {
				t.Errorf("the process that stands by has delivered %d", n)
			}
			r.answers(down)
			all = append(all, w.raised(50)...)
			if how == "stopped" {
				one.stop()
			} else {
				one.nc.Close()
			}
			all = append(all, w.raised(50)...)
			r.answers(nil)
			wantInOrder(t, r.awaitOf(150), all)
			if n := two.count(t, "pager", "delivered"); n == 0 {
				t.Error("the second process has delivered nothing")
			}
		})
	}
}

// A reload applies the changes: a new secret in its file, a new sink, a removed sink. If the file cannot be read, the
// previous sinks stay.
func TestReload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	r, p := w.pager()
	other := newReceiver(t)
	w.sinks("  - {name: pager, type: carrier-pigeon}\n")
	streamtest.Eventually(t, "the mistake is logged", func() (bool, string) {
		return strings.Contains(w.log.String(), "sinks.yml:2:25: type of sink pager: want webhook"), w.log.String()
	})
	kept := w.publish(w.alert("a", 80, api.StateRaised))
	wantInOrder(t, r.awaitOf(1), kept)
	w.sinks(w.webhook("pager", r, "") + w.webhook("other", other, ""))
	w.ready(other)
	// The file has a new secret beside the old one: the receiver still has the old one.
	w.write("secret", "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n"+secret+"\n")
	testkit.Must(t, p.file.Reload())
	w.ready(r, other)
	w.sinks(w.webhook("other", other, ""))
	streamtest.Eventually(t, "the sink is gone", func() (bool, string) {
		return p.oldest(t, "pager") < 0, ""
	})
}

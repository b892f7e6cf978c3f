package sinks_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// fakeAM accepts alerts like Alertmanager, and answers as the test wants.
type fakeAM struct {
	*httptest.Server
	mu     sync.Mutex
	status func(list []amAlert) int
	posts  [][]string // each request: "user:1 80" for a raised alert, with a "-" before it for a cleared one
}

func newFakeAM(t *testing.T) *fakeAM {
	t.Helper()
	a := &fakeAM{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list []amAlert
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Errorf("a request that is no list of alerts: %v", err)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		status := http.StatusOK
		if a.status != nil {
			status = a.status(list)
		}
		var names []string
		for _, x := range list {
			names = append(names, x.name())
		}
		slices.Sort(names)
		if status == http.StatusOK {
			a.posts = append(a.posts, names)
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(a.Close)
	return a
}

func (x amAlert) name() string {
	name := x.Labels["key"] + " " + x.Labels["level"]
	if !x.EndsAt.After(time.Now()) {
		return "-" + name
	}
	return name
}

func (a *fakeAM) answers(status func([]amAlert) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

// await waits for a request with an alert, after the first n. It returns the request.
func (a *fakeAM) await(t testing.TB, n int, name string) (post []string) {
	t.Helper()
	streamtest.Eventually(t, name+" comes", func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for i, p := range a.posts {
			if i >= n && slices.Contains(p, name) {
				post = p
				return true, ""
			}
		}
		return false, fmt.Sprint(a.posts)
	})
	return post
}

func (a *fakeAM) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.posts)
}

func (a *fakeAM) sink(more string) string {
	return fmt.Sprintf("  - {name: am, type: alertmanager, url: %q%s}\n", a.URL, more)
}

// activeAM starts a process that delivers to a fakeAM.
func (w *world) activeAM(more string) (*fakeAM, *process) {
	w.t.Helper()
	a := newFakeAM(w.t)
	w.sinks(a.sink(more))
	p := w.start()
	w.readyAM(a)
	return a, p
}

// standing starts the sinks again and returns what the first request with an alert has.
func (w *world) standing(a *fakeAM, p *process, name string) string {
	w.t.Helper()
	p.stop()
	n := a.count()
	w.start()
	post := a.await(w.t, n, name)
	return strings.Join(post, ",")
}

// readyAM waits until the sink delivers.
func (w *world) readyAM(a *fakeAM) {
	w.t.Helper()
	before := a.count()
	streamtest.Eventually(w.t, "the sink delivers", func() (bool, string) {
		w.publish(w.alert("ready", 80, api.StateRaised))
		return a.count() > before, ""
	})
}

// A changed file selects fewer alerts: an active alert that is no longer for the sink is not sent again.
func TestWhatTheFileNoLongerTakesEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, streamtest.NATS(t))
	a, p := w.activeAM("")
	w.publish(w.alert("user:1", 80, api.StateRaised), w.alert("user:1", 95, api.StateRaised))
	a.await(t, 0, "user:1 80")
	a.await(t, 0, "user:1 95")
	w.sinks(a.sink(", levels: [80]"))
	before := a.count()
	testkit.Must(t, p.file.Reload())
	post := a.await(t, before, "user:1 80")
	if slices.Contains(post, "user:1 95") {
		t.Errorf("it is sent again: %s", post)
	}
	w.publish(w.alert("user:1", 95, api.StateCleared)) // no sink takes it
	w.sinks(a.sink(""))
	before = a.count()
	testkit.Must(t, p.file.Reload())
	post = a.await(t, before, "user:1 80")
	if slices.Contains(post, "user:1 95") {
		t.Errorf("it is sent again after the file was set back: %s", post)
	}
}

// Alertmanager refuses a cleared alert, or does not accept it within give_up: the alert does not stay active forever.
// An alert that was raised while Alertmanager was down for longer is active when it is back.
func TestAnAlertThatIsGivenUp(t *testing.T) {
	t.Parallel()
	for outcome, status := range map[string]int{"dropped": 400, "expired": 500} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, streamtest.NATS(t))
			a, p := w.activeAM(", give_up: 1s")
			w.publish(w.alert("user:1", 80, api.StateRaised), w.alert("user:2", 80, api.StateRaised))
			a.await(t, 0, "user:1 80")
			a.await(t, 0, "user:2 80")
			a.answers(func(list []amAlert) int {
				for _, x := range list {
					if name := x.name(); name == "-user:1 80" || len(list) == 1 && name == "user:3 80" {
						return status
					}
				}
				return http.StatusOK
			})
			before := p.count(t, "am", outcome)
			w.publish(w.alert("user:1", 80, api.StateCleared), w.alert("user:3", 80, api.StateRaised))
			streamtest.Eventually(t, "both are given up", func() (bool, string) {
				return p.count(t, "am", outcome) >= before+2, w.log.String()
			})
			text := w.standing(a, p, "user:2 80")
			if strings.Contains(text, "user:1") || strings.Contains(text, "user:3") != (outcome == "expired") {
				t.Errorf("what stands is %s", text)
			}
		})
	}
}

// Alerts were removed before the sink read them, and one of them may have cleared another alert. Alerts that were to
// expire meanwhile end, whether they were active or still waited to be delivered. All others stay active.
func TestWhatStandsAfterAGap(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprint("waits ", waits), func(t *testing.T) {
			t.Parallel()
			afterAGap(t, waits)
		})
	}
}

func afterAGap(t *testing.T, waits bool) {
	w := newWorld(t, streamtest.NATS(t))
	js := streamtest.JetStream(t, w.url)
	a, p := w.activeAM("")
	a.answers(func(list []amAlert) int {
		if waits && slices.ContainsFunc(list, func(x amAlert) bool { return x.Labels["key"] == "user:1" }) {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	short, long := w.alert("user:1", 80, api.StateRaised), w.alert("user:2", 80, api.StateRaised)
	short.ExpiresMs = short.AtMs + 1
	w.publish(short, long)
	if !waits {
		a.await(t, 0, "user:1 80")
	}
	a.await(t, 0, "user:2 80")
	p.stop()
	w.publish(w.alert("user:1", 80, api.StateCleared))
	stream, err := js.Stream(t.Context(), w.stream())
	testkit.Must(t, err)
	testkit.Must(t, stream.DeleteMsg(t.Context(), stream.CachedInfo().State.LastSeq))
	w.publish(w.alert("user:4", 80, api.StateRaised))
	p = w.start()
	a.await(t, 0, "user:4 80")
	a.answers(nil)
	a.await(t, 0, "user:1 80")
	if text := w.standing(a, p, "user:4 80"); strings.Contains(text, "user:1") || !strings.Contains(text, "user:2") {
		t.Errorf("what stands is %s", text)
	}
}

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

// alertmanager is Debian's Alertmanager, at one address over restarts. It keeps no alerts over restarts.
type alertmanager struct {
	*streamtest.Server
	t *testing.T
}

func newAlertmanager(t *testing.T) *alertmanager {
	t.Helper()
	config := testkit.WriteFile(t, "alertmanager.yml", "route: {receiver: none}\nreceivers: [{name: none}]\n")
	return &alertmanager{streamtest.ServeHTTP(t, streamtest.Program(t, "prometheus-alertmanager"), "/-/ready",
		"--config.file="+config, "--storage.path=.", "--web.listen-address=ADDR", "--cluster.listen-address="), t}
}

type amAlert struct {
	Labels, Annotations map[string]string
	StartsAt, EndsAt    time.Time
}

// firing returns the active alerts, by key and level.
func (a *alertmanager) firing() map[string]amAlert {
	a.t.Helper()
	resp, err := http.Get("http://" + a.Addr() + "/api/v2/alerts?active=true")
	testkit.Must(a.t, err)
	defer resp.Body.Close()
	var list []amAlert
	testkit.Must(a.t, json.NewDecoder(resp.Body).Decode(&list))
	out := map[string]amAlert{}
	for _, x := range list {
		out[x.Labels["key"]+" "+x.Labels["level"]+" "+x.Labels["window"]] = x
	}
	return out
}

func (a *alertmanager) await(what string, names ...string) map[string]amAlert {
	a.t.Helper()
	var got map[string]amAlert
	streamtest.Eventually(a.t, what, func() (bool, string) {
		got = a.firing()
		for _, name := range names {
			if _, ok := got[name]; !ok {
				return false, fmt.Sprint(got)
			}
		}
		return len(got) == len(names), fmt.Sprint(got)
	})
	return got
}

// With a real Alertmanager, alerts fire until they clear: although several windows share a subject, although
// Alertmanager restarts, and although we restart, also at the same time.
func TestAlertmanager(t *testing.T) {
	t.Parallel()
	am := newAlertmanager(t)
	w := newWorld(t, streamtest.NATS(t))
	w.sinks(fmt.Sprintf("  - {name: am, type: alertmanager, url: %q, resolve_after: 20s, keys: [\"user:*\"]}\n",
		"http://"+am.Addr()))
	p := w.start()
	streamtest.Eventually(t, "the sink delivers", func() (bool, string) {
		w.publish(w.alert("user:0", 80, api.StateRaised))
		return p.count(t, "am", "delivered") > 0, ""
	})
	const ready = "user:0 80 1m"
	hour := w.alert("user:1", 80, api.StateRaised)
	hour.WindowMs, hour.Limit, hour.Used = 3_600_000, 1000, 800
	w.publish(hour, w.alert("user:1", 80, api.StateRaised), w.alert("user:2", 100, api.StateRaised),
		w.alert("tenant:1", 100, api.StateRaised))
	got := am.await("all that is for it fires", ready, "user:1 80 1h", "user:1 80 1m", "user:2 100 1m")
	if a := got["user:2 100 1m"]; a.Labels["alertname"] != "StreamcounterLimit" || a.Labels["severity"] != "critical" ||
		a.Labels["rule"] != "api" || a.Labels["prefix"] != w.prefix ||
		a.Annotations["summary"] != "user:2 is throttled: 100 of 100 per 1m (rule api)" ||
		time.Until(a.EndsAt) > 20*time.Second {
		t.Errorf("it is %+v", a)
	}
	w.publish(w.alert("user:1", 80, api.StateCleared)) // the last alert of the subject, but not about the 1h window
	am.await("what has cleared is resolved", ready, "user:1 80 1h", "user:2 100 1m")

	am.Kill()
	w.publish(w.alert("user:2", 100, api.StateCleared))
	am.Start()
	am.await("Alertmanager is told again", ready, "user:1 80 1h")

	p.stop()
	am.Kill()
	w.publish(w.alert("user:3", 95, api.StateRaised))
	am.Start()
	w.start()
	got = am.await("both start anew", ready, "user:1 80 1h", "user:3 95 1m")
	if since := got["user:1 80 1h"].StartsAt.UnixMilli(); since != hour.SinceMs {
		t.Errorf("it is active since %d, want %d", since, hour.SinceMs)
	}
	// The sink sends an open alert again, four times in resolve_after, each time with a later end.
	streamtest.Eventually(t, "the open alert gets a later end", func() (bool, string) {
		now := am.firing()
		for name, before := range got {
			if !now[name].EndsAt.After(before.EndsAt) {
				return false, fmt.Sprintf("%s ends at %v", name, now[name].EndsAt)
			}
		}
		return true, ""
	})
}

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

// await waits for a request with these alerts, after the first n. The start of an alert's name is enough. await returns
// the request.
func (a *fakeAM) await(t testing.TB, n int, names ...string) (post []string) {
	t.Helper()
	streamtest.Eventually(t, fmt.Sprintf("%q come", names), func() (bool, string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, post = range a.posts[n:] {
			if !slices.ContainsFunc(names, func(name string) bool { return !has(post, name) }) {
				return true, ""
			}
		}
		return false, fmt.Sprint(a.posts)
	})
	return post
}

// has reports whether a request has an alert whose name begins so.
func has(post []string, name string) bool {
	return slices.ContainsFunc(post, func(s string) bool { return strings.HasPrefix(s, name) })
}

func (a *fakeAM) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.posts)
}

func (a *fakeAM) sink(more string) string {
	return fmt.Sprintf("  - {name: am, type: alertmanager, url: %q%s}\n", a.URL, more)
}

package sinks_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/streamtest"
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

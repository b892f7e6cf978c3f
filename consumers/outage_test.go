package consumers_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// lines is a log that a test reads while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// count gives how many lines say that something is tried again: by the reclaimer, by others.
func (l *lines) count() (reclaimer, others int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	reclaimer = strings.Count(l.all.String(), "reclaiming failed")
	return reclaimer, strings.Count(l.all.String(), "trying again") - reclaimer
}

// Redis is away for several passes of the reclaimer: the log has that once, with all
// partitions, and again at the next outage.
func TestAnOutageOfTheReclaimerIsToldOnce(t *testing.T) {
	own := streamtest.OwnRedis(t)
	w, log := newWorldOf(t, own.URL(), 16), &lines{}
	w.start(&recorder{}, func(c *consumers.Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	for outages := range 2 {
		w.eventually("Redis answers", func() (bool, string) {
			err := w.redis.Ping(t.Context()).Err()
			return err == nil, fmt.Sprint(err)
		})
		told, before := log.count()
		own.Stop()
		// The others wait for seconds between two attempts, the reclaimer for 0.1 s.
		w.eventually("some passes fail", func() (bool, string) {
			n, m := log.count()
			return n > told && m > before+5, fmt.Sprint(n, m)
		})
		// A pass that was under way has failed in some of the partitions only.
		if n, _ := log.count(); n > told+3 {
			t.Errorf("%d lines in outage %d", n-told, outages)
		}
		own.Start()
		w.eventually("the worker reads again", func() (bool, string) {
			out := w.log.Append(t.Context(), []api.Event{{Key: "user:1", Count: 1}})
			st, err := w.counter.Peek(t.Context(), w.rules.Match("user:1"), "user:1")
			return out.Err == nil && err == nil && st.Windows[0].Used > 0, fmt.Sprint(out.Err, err)
		})
	}
}

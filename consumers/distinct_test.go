package consumers_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// An event without the value that its rule counts becomes a dead letter with that reason; the other events count.
func TestAnEventWithoutItsValueIsADeadLetter(t *testing.T) {
	each(t, func(t *testing.T, url string) {
		r := &recorder{}
		w := newWorld(t, url, &windows.Rule{Name: "stuffing", Match: "*", Windows: []windows.Window{
			{Limit: 2, Per: time.Hour, Distinct: "user", Normalize: windows.Normalize{Lower: true}, PublishValues: 5}}})
		key := w.keyIn(1, "ip")
		w.append(api.Event{Key: key, Count: 1, Values: map[string]string{"user": "alice"}})
		for _, values := range [][]any{{"key", key}, {"key", key, "user", strings.Repeat("u", 257)},
			{"key", key, "user", "Andr\xe9"}} {
			w.xadd(w.keys.Events(1), values...)
		}
		w.append(api.Event{Key: key, Count: 1, Values: map[string]string{"user": "bob"}})
		w.start(r, nil)
		w.eventuallyUsed(key, 2)
		w.eventually("the decision has the values", func() (bool, string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, tr := range r.all {
				if tr.State == api.StateThrottled {
					got, err := json.Marshal(tr.Values)
					return err == nil && string(got) == `{"user":["bob","alice"]}`, string(got)
				}
			}
			return false, "none"
		})
		var letters []redis.XMessage // they are written after the fold
		w.eventually("the others are dead letters", func() (bool, string) {
			letters = w.dead(1)
			return len(letters) == 3, fmt.Sprint(letters)
		})
		for i, want := range []string{`different values of "user"`, "257 bytes", "not valid UTF-8"} {
			if reason := fmt.Sprint(letters[i].Values["reason"]); !strings.Contains(reason, want) {
				t.Errorf("%s; want %s", reason, want)
			}
		}
	})
}

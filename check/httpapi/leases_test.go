package httpapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// Over HTTP a key that is asked for often is answered from a lease. Calls that no lease answers count beside it, and
// what was admitted is what Redis has when the process has stopped.
func TestLeases(t *testing.T) { answersFromALease(t, streamtest.AnyRedis(t)) }

func answersFromALease(t *testing.T, c redis.UniversalClient) {
	hot := &windows.Rule{Name: "hot", Match: "hot:*", Windows: []windows.Window{{Limit: 1000, Per: time.Hour}},
		Lease: 10 * time.Second}
	w := newWorld(t, c, hot, tenAMinute)
	leased := func(body string, want int64) {
		t.Helper()
		a := w.post(t, body)
		wantStatus(t, a, 200)
		if used := fmt.Sprintf(`"used":%d,`, want); !strings.Contains(a.text, used) ||
			!strings.Contains(a.text, `"source":"lease"`) {
			t.Errorf("want %s from a lease: %s", used, a.text)
		}
	}
	for range 20 {
		wantStatus(t, w.get(t, "hot:1"), 200)
	}
	leased(`{"key":"hot:1","cost":2}`, 22)
	leased(`{"checks":[{"key":"hot:1"}]}`, 23)

	several := w.post(t, `{"checks":[{"key":"hot:1","cost":2},{"key":"hot:2"}]}`)
	wantStatus(t, several, 200)
	once := w.post(t, `{"key":"hot:1","cost":4}`, "Idempotency-Key: order-1")
	again := w.post(t, `{"key":"hot:1","cost":4}`, "Idempotency-Key: order-1")
	for _, a := range []answer{several, once, again} {
		if !strings.Contains(a.text, `"source":"redis"`) {
			t.Errorf("not by Redis: %s", a.text)
		}
	}
	if again.body["replayed"] != true {
		t.Errorf("charged again: %s", again.text)
	}
	w.service.Close()
	if used := w.used(t, "hot:1"); used != 20+2+1+2+4 {
		t.Errorf("%d used after the stop, want 29", used)
	}
	testkit.Must(t, w.activity.Publish(context.Background()))
	if top := w.do(t, "GET", "/v1/top?rule=hot", "").text; !strings.Contains(top, `"key":"hot:1","units":33`) {
		t.Errorf("33 units were asked for: %s", top)
	}
}

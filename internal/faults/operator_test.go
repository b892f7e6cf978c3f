package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// Keys that begin with o: are in an operator's hand: blocked, exempt, given another
// limit, let go, while they are checked.
const (
	operatedKeys = 3
	otherLimit   = 20 // of a key with an override of its windows
	unlimited    = 1_000_000_000
	setFor       = 500 * time.Millisecond // an override that ends by itself
)

// hand is what an operator knows to be in force for one key: block, exempt or limit, "" for nothing, "?" while it
// changes. Each change is another pointer.
type hand struct{ atomic.Pointer[string] }

func (h *hand) set(force string) { h.Store(&force) }

var overrides = map[string]string{
	"block":  `{"block":true,"reason":"faults"`,
	"exempt": `{"exempt":true`,
	"limit": fmt.Sprintf(`{"windows":[{"limit":%d,"per":"%s"},{"limit":%d,"per":"24h"}]`, otherLimit, checkPer,
		unlimited),
}

// override sets or clears the override of a key.
func (d *driver) override(client *http.Client, method, key, body string) (status int, err error) {
	return answerTo(context.Background(), client, method, d.s.base+"/v1/overrides/"+key, body, "", nil)
}

// operate sets and clears the overrides of a key, each until there is an answer. One
// of three ends by itself.
func (d *driver) operate(ctx context.Context, key string, h *hand, random *rand.Rand) {
	change := func(client *http.Client, method, body string) bool {
		h.set("?")
		for {
			status, err := d.override(client, method, key, body)
			if err == nil && (status == http.StatusOK || status == http.StatusNotFound && method == "DELETE") {
				return true
			}
			if err == nil {
				d.record.ledger.fail(key, "%s: %s of an override was answered %d", method, status)
			}
			if !pause.For(ctx, 100*time.Millisecond) {
				return false
			}
		}
	}
	loop(ctx, random, 200, 800, func(client *http.Client) {
		force := []string{"block", "exempt", "limit"}[random.IntN(3)]
		epoch := d.record.ledger.now()
		if random.IntN(3) == 0 {
			if !change(client, "PUT", overrides[force]+fmt.Sprintf(`,"for":"%s"}`, setFor)) {
				return
			}
			pause.For(ctx, setFor+time.Second)
			if epoch == d.record.ledger.now() {
				h.set("") // it has ended by itself
				return
			}
		} else {
			if !change(client, "PUT", overrides[force]+"}") {
				return
			}
			h.set(force)
			pause.For(ctx, time.Duration(200+random.IntN(1500))*time.Millisecond)
		}
		if change(client, "DELETE", "") {
			h.set("")
		}
	})
}

// clearOverrides clears what the operator could not, as Redis was away when the load ended: a block
// stands for a day.
func (d *driver) clearOverrides(t testing.TB) {
	t.Helper()
	client := &http.Client{Timeout: 2 * time.Second}
	for i := range operatedKeys {
		streamtest.Eventually(t, "an override is cleared", func() (bool, string) {
			status, err := d.override(client, "DELETE", fmt.Sprintf("o:%d", i), "")
			return err == nil && (status == http.StatusOK || status == http.StatusNotFound), fmt.Sprint(status, err)
		})
	}
}

// checkOperated checks the key, and compares each answer with what was in force from
// before it was asked to after it was answered.
func (d *driver) checkOperated(ctx context.Context, key string, h *hand, random *rand.Rand) {
	ledger := d.record.ledger
	loop(ctx, random, 10, 30, func(client *http.Client) {
		cost := 1 + random.Int64N(5)
		force := h.Load()
		before := *force
		a, err := d.checkNoted(client, key, cost, checkPer)
		was := outcomeOf(a)
		if err != nil || was == nobodyKnows && a.Override != "block" {
			d.charged(key, 0, cost)
			return
		}
		if was == granted {
			d.charged(key, cost, cost)
		}
		if h.Load() != force || before == "?" {
			return
		}
		d.operated.Add(1)
		taken := ledger.takenOf(key)
		switch {
		case before == "block" && was == granted:
			ledger.fail(key, "%s was blocked, and a check of %d was granted", cost)
		case before != "block" && a.Override == "block":
			ledger.fail(key, "%s was denied by a block that had ended; in force was %q", before)
		case before == "exempt" && was == denied:
			ledger.fail(key, "%s was exempt, and a check of %d was denied", cost)
		case before == "limit" && was == granted && taken > otherLimit:
			ledger.fail(key, "%s: %d units were charged at once, an override says %d", taken, otherLimit)
		case before == "" && was == granted && taken > checkLimit:
			ledger.fail(key, "%s: %d units were charged at once with no override, the limit is %d", taken, checkLimit)
		}
	})
}

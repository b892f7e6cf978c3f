package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
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

// Keys that begin with m: have a rule that is reloaded in one form after another under load. All count
// checkPer by one algorithm, as another one would begin with nothing.
var forms = []string{
	"algorithm: sliding-log\n    windows: [{limit: %[1]d, per: %[2]s}, {limit: 1000000000, per: 24h}]",
	"windows: [{limit: %[1]d, per: %[2]s}]",
	"windows: [{limit: %[1]d, per: %[2]s}, {limit: 1000000000, per: day, zone: Europe/Berlin}]",
	"algorithm: sliding-log-zset\n    windows: [{limit: %[1]d, per: %[2]s, algorithm: sliding-log}, " +
		"{limit: 1000000000, per: 24h}]",
	"windows: [{limit: %[1]d, per: %[2]s}, {limit: 1000000000, per: 24h, algorithm: sliding-buckets}]",
	"windows: [{limit: %[1]d, per: %[2]s}, {limit: 1000000000, per: month, starts: 31}]",
}

func rulesIn(form int) string {
	return rules + "  - name: moving\n    match: \"m:*\"\n    hold: 0s\n    on_error: deny\n    " +
		fmt.Sprintf(forms[form], checkLimit, checkPer) + "\n" + leasedRule + valuesRules
}

// byCallers tells the keys that are judged by the callers' record alone: those of the rule whose form
// changes, and leased ones, whose units are charged together, and some that nobody was granted.
func byCallers(key string) bool { return formOf(key) == "m" || formOf(key) == "l" }

// reload writes the rules in one form after another, as a whole, and at last in the first.
func (d *driver) reload(ctx context.Context, random *rand.Rand) {
	write := func(form int) {
		next := d.s.file + ".next"
		err := os.WriteFile(next, []byte(rulesIn(form)), 0o600)
		if err == nil {
			err = os.Rename(next, d.s.file)
		}
		if err != nil {
			d.s.t.Error(err)
		}
		d.reloads.Add(1)
	}
	for pause.For(ctx, time.Duration(200+random.IntN(1300))*time.Millisecond) {
		write(random.IntN(len(forms)))
	}
	write(0)
}

// checkMoving checks keys whose rule changes: their limit is the same in every form.
func (d *driver) checkMoving(ctx context.Context, random *rand.Rand) {
	loop(ctx, random, 10, 20, func(client *http.Client) {
		key, cost := fmt.Sprintf("m:%d", random.IntN(2)), 1+random.Int64N(5)
		if a, err := d.checkNoted(client, key, cost, checkPer); err == nil && outcomeOf(a) == granted {
			d.moved.Add(1)
		}
	})
}

// Keys that begin with l: have a rule with a lease: the server answers for them from units that it has
// reserved ahead, and may be killed with them.
const leasedLimit = 100

var leasedRule = fmt.Sprintf(`  - name: leased
    match: "l:*"
    hold: 0s
    on_error: deny
    lease: 500ms
    windows: [{limit: %d, per: %s}]
`, leasedLimit, checkPer)

// checkLeased checks a key so often that it has a lease. Units that are charged when a lease ends leave the
// window later than their grants do, except in the time of a lease after a step of the clock.
func (d *driver) checkLeased(ctx context.Context, random *rand.Rand) {
	const key, lease = "l:0", 625 * time.Millisecond // a quarter longer in Redis
	loop(ctx, random, 10, 20, func(client *http.Client) {
		a, err := d.checkNoted(client, key, 1, checkPer-lease)
		if err == nil && a.Allowed && a.Source == api.SourceLease {
			d.leased.Add(1)
		}
	})
}

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

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

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"time"
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
	for pace(ctx, time.Duration(200+random.IntN(1300))*time.Millisecond) {
		write(random.IntN(len(forms)))
	}
	write(0)
}

// checkMoving checks keys whose rule changes: their limit is the same in every form.
func (d *driver) checkMoving(ctx context.Context, random *rand.Rand) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for n := 0; pace(ctx, time.Duration(10+random.IntN(20))*time.Millisecond); n++ {
		key, cost := fmt.Sprintf("m:%d", random.IntN(2)), 1+random.Int64N(5)
		began, epoch := time.Now(), d.record.ledger.now()
		if a, err := d.checkOne(context.Background(), client, key, cost, ""); err == nil && outcomeOf(a) == granted {
			id := fmt.Sprintf("%p %d", random, n)
			d.record.ledger.set(key, id, units{cost, began.Add(checkPer - rounding), epoch})
			d.moved.Add(1)
		}
	}
}

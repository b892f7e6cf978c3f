package faults

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/streamcounter/streamcounter/api"
)

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

// checkLeased checks a key so often that it has a lease. What is charged when a lease ends leaves the
// window later than it was granted, but for the time of a lease after a step of the clock.
func (d *driver) checkLeased(ctx context.Context, n int) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	const key, lease = "l:0", 625 * time.Millisecond // a quarter longer in Redis
	for i := 0; pace(ctx, 20*time.Millisecond); i++ {
		began, epoch := time.Now(), d.record.ledger.now()
		if a, err := d.checkOne(context.Background(), client, key, 1, ""); err == nil && outcomeOf(a) == granted {
			id := fmt.Sprintf("%d %d", n, i)
			d.record.ledger.set(key, id, units{1, began.Add(checkPer - lease - rounding), epoch})
			if a.Source == api.SourceLease {
				d.leased.Add(1)
			}
		}
	}
}

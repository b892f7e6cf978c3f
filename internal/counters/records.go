package counters

import (
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// parseThrottle reads the throttle decision out of a field of the levels hash
// (lua/records.lua has the form of both); false where the key stands below its limits.
func parseThrottle(field, record string) (api.Throttled, bool) {
	key, _, _ := strings.Cut(field, "\n")
	body, decision, ok := strings.Cut(record, "!")
	d := strings.Split(decision, ",")
	if !ok || len(d) != 6 {
		return api.Throttled{}, false
	}
	rule, _, _ := strings.Cut(body, ";")
	return api.Throttled{Key: key, Rule: rule, WindowMs: atoi(d[0]), Limit: atoi(d[1]), SinceMs: atoi(d[2]),
		UntilMs: atoi(d[3]), Shadow: d[5] == "1"}, true
}

// ReservationOf gives the id of a reservation, if a field of what is due is one.
func ReservationOf(field string) (id string, ok bool) {
	id, ok = strings.CutPrefix(field, "\n")
	return id, ok && !strings.Contains(id, "\n") // an override of a pattern has two line feeds
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

package counters

import (
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// parseThrottle reads the throttle decision from a field of the levels hash and its
// record (lua/records.lua has the form of both). It returns false if there is no decision.
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

// ReservationOf returns the id of a reservation, if a due field is that of a reservation.
func ReservationOf(field string) (id string, ok bool) {
	id, ok = strings.CutPrefix(field, "\n")
	return id, ok && !strings.Contains(id, "\n") // a record of a pattern has two line feeds
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

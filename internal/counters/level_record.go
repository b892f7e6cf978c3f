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
	t := api.Throttled{Key: key, Rule: rule, Shadow: d[5] == "1"}
	for i, to := range []*int64{&t.WindowMs, &t.Limit, &t.SinceMs, &t.UntilMs} {
		n, err := strconv.ParseInt(d[i], 10, 64)
		if err != nil {
			return t, false
		}
		*to = n
	}
	return t, true
}

// holdIn returns the hold of the decision in a record, in ms.
func holdIn(record string) int64 {
	d := strings.Split(record, ",")
	return atoi(d[len(d)-2])
}

// versionIn returns the version in a record, the third word of its head.
func versionIn(record string) int64 {
	head := record[:max(0, strings.IndexAny(record, "|!"))]
	return atoi(head[strings.LastIndexByte(head, ';')+1:])
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

package wording

import (
	"fmt"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/windows"
)

// periods describes the periods of a window of the calendar: month from the 15th, Berlin time. It is empty for
// another window.
func periods(w windows.Window) string {
	c := w.Calendar
	if c.Unit == "" {
		return ""
	}
	text := c.Unit
	if starts := c.StartsText(); starts != "" {
		switch c.Unit {
		case "month":
			text += " from the " + english.Ordinal(c.Starts)
		case "year":
			text += fmt.Sprintf(" from %s %d", time.Month(c.Starts/100), c.Starts%100)
		default:
			text += " from " + strings.ToUpper(starts[:1]) + starts[1:]
		}
	}
	zone := c.Zone
	if i := strings.LastIndexByte(zone, '/'); i >= 0 && !strings.HasPrefix(zone, "Etc/") {
		zone = strings.ReplaceAll(zone[i+1:], "_", " ") + " time"
	}
	return text + ", " + zone
}

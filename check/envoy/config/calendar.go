package config

import (
	"fmt"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/windows"
)

// Calendar counts one month and one year by the calendar in that time zone, from its first day; empty:
// they are 30 and 365 days.
func Calendar(zone string) Option {
	return func(o *options) error {
		if zone != "" {
			if _, err := windows.CalendarWindow(1, "month", zone, ""); err != nil {
				return fmt.Errorf("calendar: %w", err)
			}
		}
		o.zone = zone
		return nil
	}
}

// window gives the window of a limit.
func (o *options) window(limit, multiplier int64, unit rlsv3.RateLimitResponse_RateLimit_Unit, per time.Duration) (
	windows.Window, error,
) {
	byCalendar := unit == rlsv3.RateLimitResponse_RateLimit_MONTH || unit == rlsv3.RateLimitResponse_RateLimit_YEAR
	if o.zone == "" || multiplier != 1 || !byCalendar {
		return windows.Window{Limit: limit, Per: per}, nil
	}
	return windows.CalendarWindow(limit, strings.ToLower(unit.String()), o.zone, "")
}

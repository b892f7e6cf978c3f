package windows

import (
	"fmt"
	"time"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/english"
)

// Default and largest value of a rule's hold. A throttle or alert stays published at least as long as the hold.
const (
	DefaultHold = time.Second
	MaxHold     = 24 * time.Hour
)

// holdOption has no default here, because 0 is a valid value. Parse sets the default before it reads a rule.
var holdOption = option{
	fields: []optionField{{"hold", "duration", fmt.Sprintf("`%s`", inDays(DefaultHold)),
		"a throttle or alert stays published at least this long, up to " + inDays(MaxHold) +
			": subscribers deny, but checks are admitted once there is room",
		func(d *document.Document, r *Rule) document.Setter { return document.Leaf(d, &r.Hold, duration) }}},
	validate: func(r *Rule) *fault {
		if r.Hold < 0 || r.Hold > MaxHold || r.Hold%time.Millisecond != 0 {
			return faultf("hold", "hold %s: want 0s to %s in whole milliseconds", inDays(r.Hold), inDays(MaxHold))
		}
		return nil
	},
	state: func(r *Rule) string {
		if r.Hold == 0 {
			return "a throttle or alert ends as soon as the count allows"
		}
		return "a throttle or alert stays published at least " + english.Span(r.Hold) +
			", but checks are admitted once there is room"
	},
	says: func(r *Rule) bool { return r.Hold != DefaultHold && !r.Unlevelled },
}

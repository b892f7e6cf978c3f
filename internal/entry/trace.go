package entry

import (
	"regexp"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// maxState bounds a tracestate, in bytes: the length that W3C's recommendation says to pass on.
const maxState = 512

// parentForm is the form of a traceparent of at most 128 bytes. Versions after 00 may have more at their end.
var parentForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,72})?$`)

// DropBadTrace removes from an event what workers would ignore: a traceparent that is not valid, and a tracestate that
// is too long or has no traceparent. Services pass on what their callers send. With a large value, the event would be
// too large to be counted, and with it all events that are merged with it.
func DropBadTrace(e *api.Event) {
	if !validParent(e.TraceParent) {
		e.TraceParent, e.TraceState = "", ""
	}
	if len(e.TraceState) > maxState {
		e.TraceState = ""
	}
}

func validParent(p string) bool {
	if !parentForm.MatchString(p) {
		return false
	}
	version, trace, span := p[:2], p[3:35], p[36:52]
	return version != "ff" && (version != "00" || len(p) == 55) && strings.Trim(trace, "0") != "" &&
		strings.Trim(span, "0") != ""
}

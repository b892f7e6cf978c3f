package main

import (
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/forwarded"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// parser makes an event of a line; skip is true for a line without an event.
type parser func(line string) (e api.Event, skip bool, err error)

func plainLine(line string) (e api.Event, skip bool, err error) {
	fields := strings.Fields(line)
	switch len(fields) {
	case 0:
		return e, true, nil
	case 1:
		e = api.Event{Key: fields[0], Count: 1}
	case 2:
		n, err := api.ParseCount(fields[1])
		if err != nil {
			return e, false, err
		}
		e = api.Event{Key: fields[0], Count: n}
	default:
		return e, false, fmt.Errorf("%w: %s, expected KEY or KEY COUNT", api.ErrBadRequest, api.Shorten(line))
	}
	return e, false, e.Validate()
}

func jsonLine(line string) (e api.Event, skip bool, err error) {
	if strings.TrimSpace(line) == "" {
		return e, true, nil
	}
	e, err = httpapi.DecodeEvent([]byte(line))
	return e, false, err
}

// commonLog is the beginning of a line in common or combined log format: remote
// host, identity, user, time, request. The host has no comma, because a list of addresses is not one.
// A \ in the request makes the next character a part of it: Apache writes a quote as \", nginx as \x22.
var commonLog = regexp.MustCompile(`^([^\s,]+) \S+ (.*?) ?\[([^\]]+)\] "(?:[A-Za-z]+ ((?:\\.|[^ ?"\\])+))?`)

// commonLogTime is the format of the time in such a line: to the second.
const commonLogTime = "02/Jan/2006:15:04:05 -0700"

// logParts are the parts of a log line that can be its key or a value: name → their group in commonLog.
var logParts = map[string]int{"ip": 1, "user": 2, "path": 4}

// logForm says which event a log line becomes. If the key is the user, a line without a user is skipped. A value that
// is missing, "-", or not valid is left out; the line is counted anyway.
type logForm struct {
	key    string   // ip or user, of logParts: ip makes keys such as ip:192.0.2.1
	values []string // of logParts
}

// validate returns errors that name the flags and their values.
func (f logForm) validate() error {
	if f.key != "ip" && f.key != "user" {
		return settings.UsageErrorf("--key is %q: expected ip or user", f.key)
	}
	for _, name := range f.values {
		if logParts[name] == 0 {
			return settings.UsageErrorf("--values is %q: expected some of ip, user and path", f.values)
		}
	}
	return nil
}

func (f logForm) line(line string) (e api.Event, skip bool, err error) {
	e, _, skip, err = f.read(line)
	return e, skip, err
}

// timed also returns the time of the request.
func (f logForm) timed(line string) (at time.Time, r compare.Request, skip bool, err error) {
	e, text, skip, err := f.read(line)
	if err != nil || skip {
		return at, r, skip, err
	}
	if at, err = time.Parse(commonLogTime, text); err != nil {
		return at, r, false, fmt.Errorf("%w: time %s, expected one such as 17/May/2015:10:05:03 +0000",
			api.ErrBadRequest, api.Shorten(text))
	}
	return at, compare.Request{Key: e.Key, Cost: 1, Values: e.Values}, false, nil
}

// trace reads a log as a trace. It reports lines that cannot be read, and how many were skipped.
func (f logForm) trace(name string, in io.Reader, messages io.Writer) (compare.Trace, error) {
	rejected, skipped := 0, 0
	t, err := compare.ReadLog(name, in, func(line string) (time.Time, compare.Request, bool, error) {
		at, r, skip, err := f.timed(line)
		if skip {
			skipped += withoutUser(line)
		}
		return at, r, skip, err
	}, func(n int, err error) {
		rejected++
		reportRejected(messages, rejected, fmt.Sprintf("%s:%d", name, n), err)
	})
	reportSkipped(messages, skipped)
	return t, err
}

// withoutUser returns 1 for a skipped line that is not blank: it has no user. It returns 0 for a blank one.
func withoutUser(line string) int { return min(1, len(strings.TrimSpace(line))) }

func reportSkipped(messages io.Writer, n int) {
	if n > 0 {
		fmt.Fprintf(messages, "%s without a user skipped\n", english.Plural(n, "line"))
	}
}

func (f logForm) read(line string) (e api.Event, at string, skip bool, err error) {
	if strings.TrimSpace(line) == "" {
		return e, "", true, nil
	}
	m := commonLog.FindStringSubmatch(line)
	if m == nil || strings.HasPrefix(m[logParts["user"]], "- ") { // a field too many before the time
		return e, "", false, fmt.Errorf("%w: %s is not a line of a web server's log in common or combined format",
			api.ErrBadRequest, api.Shorten(line))
	}
	if a, err := netip.ParseAddr(m[logParts["ip"]]); err == nil { // else it is a name
		m[logParts["ip"]] = forwarded.Caller(a, forwarded.CallerBits)
	}
	key := m[logParts[f.key]]
	if f.key == "user" && (key == "" || key == "-") {
		return e, "", true, nil
	}
	e = api.Event{Key: f.key + ":" + key, Count: 1}
	for _, name := range f.values {
		if part := m[logParts[name]]; part != "-" && api.ValidateValue(name, part) == nil {
			if e.Values == nil {
				e.Values = map[string]string{}
			}
			e.Values[name] = part
		}
	}
	return e, m[3], false, e.Validate()
}

package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/httpapi"
)

// lineFormats: name → how a line becomes an event; skip is true for a line that
// holds none.
var lineFormats = map[string]func(line string) (e api.Event, skip bool, err error){
	"lines": plainLine, "ndjson": jsonLine, "clf": logLine,
}

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
// host, identity, user, time, request.
var commonLog = regexp.MustCompile(`^(\S+) \S+ (.*?) ?\[([^\]]+)\] "(?:[A-Za-z]+ ([^ ?"]+))?`)

// commonLogTime is how such a line tells its time: to the second.
const commonLogTime = "02/Jan/2006:15:04:05 -0700"

func logLine(line string) (e api.Event, skip bool, err error) {
	e, _, skip, err = logFields(line)
	return e, skip, err
}

// timedLogLine also reads when the request came.
func timedLogLine(line string) (at time.Time, key string, skip bool, err error) {
	e, text, skip, err := logFields(line)
	if err != nil || skip {
		return at, "", skip, err
	}
	if at, err = time.Parse(commonLogTime, text); err != nil {
		return at, "", false, fmt.Errorf("%w: time %s, expected one such as 17/May/2015:10:05:03 +0000",
			api.ErrBadRequest, api.Shorten(text))
	}
	return at, e.Key, false, nil
}

func logFields(line string) (e api.Event, at string, skip bool, err error) {
	if strings.TrimSpace(line) == "" {
		return e, "", true, nil
	}
	m := commonLog.FindStringSubmatch(line)
	if m == nil {
		return e, "", false, fmt.Errorf("%w: %s is not a line of a web server's log in common or combined format",
			api.ErrBadRequest, api.Shorten(line))
	}
	e = api.Event{Key: "ip:" + m[1], Count: 1}
	return e, m[3], false, e.Validate()
}

// logValues are the parts of a log's line that --values names, by their group in commonLog.
var logValues = map[string]int{"user": 2, "path": 4}

// withLogValues reads a line of a log with some of its parts as values. A part that is missing, "-", or that cannot
// be a value is left out: the line counts all the same.
func withLogValues(names []string) func(line string) (e api.Event, skip bool, err error) {
	return func(line string) (api.Event, bool, error) {
		e, skip, err := logLine(line)
		if skip || err != nil {
			return e, skip, err
		}
		e.Values = map[string]string{}
		parts := commonLog.FindStringSubmatch(line)
		for _, name := range names {
			if part := parts[logValues[name]]; part != "-" && api.ValidateValue(name, part) == nil {
				e.Values[name] = part
			}
		}
		return e, false, e.Validate()
	}
}

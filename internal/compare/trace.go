package compare

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/windows"
)

// Request is one call: at Ms, in ms since 1970, Key requests Cost units.
type Request struct {
	Ms     int64
	Key    string
	Cost   int64
	Values map[string]string // of the fields that rules count; nil: none
}

// Trace is the requests that every algorithm gets.
type Trace struct {
	Name     string    // a title: what it is, or the file that it is from
	Requests []Request // in the order of time
	Sorted   int       // requests that came after a later one, and were put in order
	Rejected int       // lines that could not be read and are not in it
}

// sort puts the requests in order; requests of the same time keep their order.
func (t *Trace) sort() {
	newest := int64(0)
	for _, r := range t.Requests {
		if r.Ms < newest {
			t.Sorted++
		}
		newest = max(newest, r.Ms)
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.Ms, b.Ms) })
}

// info describes the trace, which has at least one request.
func (t *Trace) info() TraceInfo {
	n, keys := len(t.Requests), map[string]bool{}
	out := TraceInfo{Name: t.Name, Requests: n, FirstMs: t.Requests[0].Ms, LastMs: t.Requests[n-1].Ms,
		Sorted: t.Sorted, RejectedLines: t.Rejected}
	for _, r := range t.Requests {
		keys[r.Key] = true
		out.Units += r.Cost
	}
	out.Keys = len(keys)
	return out
}

// has reports whether any request has a value of the field.
func (t *Trace) has(field string) bool {
	return slices.ContainsFunc(t.Requests, func(r Request) bool { return r.Values[field] != "" })
}

// Bounds of what is read.
const (
	maxLine = 1 << 20 // bytes; a log line with a long user agent is far below
	maxMs   = 9e12    // a time.Duration has room for 292 years
)

// ReadTrace reads lines of `ms key cost field=value …`; a missing cost is 1. It skips blank lines and lines that
// begin with #. valid returns what is wrong with a key or a cost. The first line that cannot be read is an error that
// begins with NAME:LINE.
func ReadTrace(name string, r io.Reader, valid func(key string, cost int64) error) (Trace, error) {
	t := Trace{Name: "trace " + name}
	n, err := EachLine(r, func(n int, line string, err error) error {
		if line = strings.TrimSpace(line); err != nil || line == "" || line[0] == '#' {
			return err
		}
		request, err := traceLine(line)
		if err == nil {
			err = valid(request.Key, request.Cost)
		}
		t.Requests = append(t.Requests, request)
		return err
	})
	t.sort()
	return t, inLine(name, n, err)
}

func inLine(name string, n int, err error) error {
	if err != nil {
		err = fmt.Errorf("%s:%d: %w", name, n, err)
	}
	return err
}

func traceLine(line string) (Request, error) {
	fields := strings.Fields(line)
	var values map[string]string
	for n := len(fields) - 1; n >= 2 && strings.Contains(fields[n], "="); n-- {
		name, value, _ := strings.Cut(fields[n], "=")
		if values == nil {
			values = map[string]string{}
		}
		values[name], fields = value, fields[:n]
	}
	if len(fields) != 2 && len(fields) != 3 {
		return Request{}, fmt.Errorf("%.60q: want MS KEY or MS KEY COST, and FIELD=VALUE", line)
	}
	r := Request{Key: fields[1], Cost: 1, Values: values}
	err := api.ValidateValues(values)
	if err != nil {
		return Request{}, err
	}
	if r.Ms, err = strconv.ParseInt(fields[0], 10, 64); err != nil || r.Ms < 0 || r.Ms > maxMs {
		return Request{}, fmt.Errorf("ms %.60q: want a whole number of milliseconds from 0 to 9*10^12", fields[0])
	}
	if len(fields) == 3 {
		if r.Cost, err = strconv.ParseInt(fields[2], 10, 64); err != nil || r.Cost < 1 {
			return Request{}, fmt.Errorf("cost %.60q: want a whole number of at least 1", fields[2])
		}
	}
	return r, nil
}

// logLine reads one line of a server's log: its time, and the request without its Ms. skip is true for a line without
// a request.
type logLine func(line string) (at time.Time, r Request, skip bool, err error)

// ReadLog reads a log whose times are whole seconds, in any order. A line that cannot be read is counted and passed
// to rejected, and reading goes on.
//
// The requests of one second are spread evenly over it, in their order: all at its beginning would be a burst that
// never happened. The same log always results in the same trace.
func ReadLog(name string, r io.Reader, parse logLine, rejected func(line int, err error)) (Trace, error) {
	t := Trace{Name: "log " + name}
	n, err := EachLine(r, func(n int, line string, err error) error {
		var at time.Time
		var request Request
		if err == nil {
			var skip bool
			if at, request, skip, err = parse(line); skip {
				return nil
			}
		}
		if err == nil && (at.Unix() < 0 || at.UnixMilli() > maxMs) {
			err = fmt.Errorf("time %s: want one from 1970 on", at)
		}
		if err != nil {
			t.Rejected++
			rejected(n, err)
			return nil
		}
		request.Ms = at.Unix() * 1000
		t.Requests = append(t.Requests, request)
		return nil
	})
	t.sort()
	for rest := t.Requests; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Ms == rest[0].Ms {
			n++
		}
		for i := range n {
			rest[i].Ms += int64(i) * 1000 / int64(n)
		}
		rest = rest[n:]
	}
	return t, inLine(name, n, err)
}

// EachLine calls do for each line with its number, from 1, until the first error. For a line that is too long, do gets
// an error and no line. EachLine returns the number of the line where it ended.
func EachLine(r io.Reader, do func(n int, line string, err error) error) (n int, err error) {
	in := bufio.NewReaderSize(r, maxLine+2)
	for n = 1; ; n++ {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		switch last := errors.Is(err, io.EOF); {
		case last && len(line) == 0:
			return n, nil
		case err != nil && !last: // the line may go on
			return n, err
		case long || len(line) > maxLine:
			err = do(n, "", fmt.Errorf("the line is longer than %d bytes", maxLine))
		default:
			err = do(n, string(line), nil)
		}
		if err != nil {
			return n, err
		}
	}
}

// start is when generated traces begin, in ms: far from zero, like real times.
const start = 1_700_000_000_000

// Bounds of the boundary demonstrations. Below the smallest window, the second demonstration would need fractions of
// a millisecond.
const (
	maxBoundaryLimit  = 100_000
	minBoundaryWindow = 20 * time.Millisecond
)

// Boundary returns two traces that show how the edge of a window affects algorithms that count by such edges. Each
// trace has two bursts of the whole limit.
//
// In the first trace, the bursts are a tenth of the window before and after the edge: a fixed window admits both. In
// the second trace, they are just before the edge and nine tenths of a window after it. By then, an algorithm that
// estimates from two windows, or that refills units over time, has forgotten most of the first burst, although all of
// it still counts. The error names the flag of `streamcounter compare`.
func Boundary(w windows.Window) ([]Trace, error) {
	switch {
	case w.Limit > maxBoundaryLimit:
		return nil, fmt.Errorf("--window has the limit %d: --boundary sends bursts of that many requests, "+
			"want at most %d", w.Limit, maxBoundaryLimit)
	case w.Per < minBoundaryWindow:
		return nil, fmt.Errorf("--window has the length %s: --boundary wants at least %s", w.Per, minBoundaryWindow)
	}
	per := w.Per.Milliseconds()
	edge := (start/per + 1) * per
	tenth := per / 10
	return []Trace{
		bursts("boundary 1", w.Limit, edge, tenth, tenth),
		bursts("boundary 2", w.Limit, edge, 1, per*9/10),
	}, nil
}

func bursts(name string, limit, edge, before, after int64) Trace {
	t := Trace{Name: fmt.Sprintf("%s: %d requests %s before an edge of the fixed windows, %d more %s after it", name,
		limit, millis(before), limit, millis(after))}
	for _, ms := range []int64{edge - before, edge + after} {
		for range limit {
			t.Requests = append(t.Requests, Request{Ms: ms, Key: "user:1", Cost: 1})
		}
	}
	return t
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

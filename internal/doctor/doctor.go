// Package doctor examines Redis and NATS for what streamcounter needs, and reports what it found, why that matters
// and which command fixes it. It changes nothing. If it may not read something, that is a finding, not an error.
//
// Read redis.go next (where the examination begins), then settings.go (what is checked).
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/english"
)

// Severity of a finding, rising: OK and Note need no action.
type Severity string

const (
	OK      Severity = "ok"
	Note    Severity = "note"    // worth knowing, or could not be checked
	Warning Severity = "warning" // counts or decisions can be lost, or are late
	Problem Severity = "problem" // counts or decisions are lost, or will be
)

var rising = []Severity{OK, Note, Warning, Problem}

func (s Severity) above(other Severity) bool {
	return slices.Index(rising, s) > slices.Index(rising, other)
}

// Finding is the result of one check. Why and Fix are empty if they do not apply.
type Finding struct {
	Check    string   `json:"check"` // what was checked, such as redis.maxmemory-policy
	Severity Severity `json:"severity"`
	Found    string   `json:"found"`         // with the value
	Why      string   `json:"why,omitempty"` // why it matters
	Fix      string   `json:"fix,omitempty"` // a command or what to do
}

// found returns a finding that is OK.
func found(check, what string) Finding { return Finding{Check: check, Severity: OK, Found: what} }

// as returns the finding with a severity, why it matters and how to fix it.
func (f Finding) as(s Severity, why, fix string) Finding {
	f.Severity, f.Why, f.Fix = s, why, fix
	return f
}

// grade returns the finding as a warning if n is at least warning, and as a problem if it is at least problem.
func grade[N cmp.Ordered](f Finding, n, warning, problem N, why, fix string) Finding {
	switch {
	case n >= problem:
		return f.as(Problem, why, fix)
	case n >= warning:
		return f.as(Warning, why, fix)
	}
	return f
}

// Checks that report whether a server answered at all, and what the user may do there.
const (
	RedisReachable = "redis.reachable"
	NATSReachable  = "nats.reachable"
	RedisRights    = "redis.acl"
)

// Report has all findings, in the order of the checks.
type Report struct {
	Worst    Severity  `json:"worst"`
	Findings []Finding `json:"findings"`
}

// NewReport joins findings to a report.
func NewReport(findings ...[]Finding) Report {
	r := Report{Worst: OK, Findings: slices.Concat(findings...)}
	for _, f := range r.Findings {
		if f.Severity.above(r.Worst) {
			r.Worst = f.Severity
		}
	}
	return r
}

// ExitCode is 0 if no finding is above a note, 1 if there is a warning or a problem, and 2 if a server did not
// answer, so that many checks were not made.
func (r Report) ExitCode() int {
	for _, f := range r.Findings {
		if f.Severity == Problem && (f.Check == RedisReachable || f.Check == NATSReachable) {
			return 2
		}
	}
	if r.Worst.above(Note) {
		return 1
	}
	return 0
}

// WriteText writes the report for people.
func (r Report) WriteText(w io.Writer) error {
	width := 0
	for _, f := range r.Findings {
		width = max(width, len(f.Check))
	}
	count := map[Severity]int{}
	var b strings.Builder
	for _, f := range r.Findings {
		count[f.Severity]++
		fmt.Fprintf(&b, "%-8s %-*s  %s\n", f.Severity, width, f.Check, f.Found)
		for _, more := range []struct{ name, text string }{{"why", f.Why}, {"fix", f.Fix}} {
			if more.text != "" {
				fmt.Fprintf(&b, "%-8s %*s  %s: %s\n", "", width, "", more.name, more.text)
			}
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %s, %s, %s\n", count[OK], english.Plural(count[Note], "note"),
		english.Plural(count[Warning], "warning"), english.Plural(count[Problem], "problem"))
	_, err := io.WriteString(w, b.String())
	return err
}

func noAnswer(err error) bool {
	_, answered := errors.AsType[redis.Error](err)
	return err != nil && !answered
}

// unknownCommand begins the answer of a Redis that does not have a command, after the ERR that go-redis leaves out.
const unknownCommand = "unknown command"

// notChecked returns the finding for something that could not be read. It is a note if the server refuses it, or lacks
// the command, like the embedded server. It is a warning if the server should have answered and did not.
func notChecked(check string, err error, fix string) Finding {
	text := err.Error()
	if answered, ok := errors.AsType[redis.Error](err); ok {
		text = answered.Error()
	}
	switch {
	case errors.Is(err, errRefused), redis.HasErrorPrefix(err, "NOPERM"):
		return found(check, "not checked: this user lacks the right").as(Note, "", fix)
	case redis.HasErrorPrefix(err, unknownCommand):
		return found(check, "not checked: this Redis does not support the command").as(Note, "", "")
	}
	return found(check, "not checked: "+text).as(Warning, "", "")
}

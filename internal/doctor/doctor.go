// Package doctor looks at Redis and NATS the way streamcounter needs them, and
// says what it found, why that matters and which command fixes it. It changes
// nothing, and what it may not read is a finding, not an error.
//
// Read redis.go next (where each look begins), then settings.go (what is looked at).
package doctor

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Severity of a finding, rising: an OK and a Note need nothing done.
type Severity string

const (
	OK      Severity = "ok"
	Note    Severity = "note"    // worth knowing, or could not be seen
	Warning Severity = "warning" // counts or decisions can be lost, or are late
	Problem Severity = "problem" // they are, or will be
)

var rising = []Severity{OK, Note, Warning, Problem}

// above reports whether s is worse than other.
func (s Severity) above(other Severity) bool {
	return slices.Index(rising, s) > slices.Index(rising, other)
}

// Finding is what one look gave. Why and Fix are empty where there is nothing to say.
type Finding struct {
	Check    string   `json:"check"` // what was looked at, such as redis.maxmemory-policy
	Severity Severity `json:"severity"`
	Found    string   `json:"found"`         // with the value
	Why      string   `json:"why,omitempty"` // it matters
	Fix      string   `json:"fix,omitempty"` // a command or what to do
}

// found makes a finding that is OK.
func found(check, what string) Finding { return Finding{Check: check, Severity: OK, Found: what} }

// as gives the finding a severity, and says why it matters and how to fix it.
func (f Finding) as(s Severity, why, fix string) Finding {
	f.Severity, f.Why, f.Fix = s, why, fix
	return f
}

// Checks that tell whether a server answered at all.
const (
	RedisReachable = "redis.reachable"
	NATSReachable  = "nats.reachable"
)

// Report is all findings, in the order in which they were looked at.
type Report struct {
	Worst    Severity  `json:"worst"`
	Findings []Finding `json:"findings"`
}

// NewReport puts findings together.
func NewReport(findings ...[]Finding) Report {
	r := Report{Worst: OK, Findings: slices.Concat(findings...)}
	for _, f := range r.Findings {
		if f.Severity.above(r.Worst) {
			r.Worst = f.Severity
		}
	}
	return r
}

// ExitCode is 0 where nothing is above a note, 1 with a warning or a problem, and
// 2 where a server did not answer, so that much was not looked at.
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

// WriteText writes the report for a person.
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
	fmt.Fprintf(&b, "\n%d ok, %s, %s, %s\n", count[OK], plural(count[Note], "note"),
		plural(count[Warning], "warning"), plural(count[Problem], "problem"))
	_, err := io.WriteString(w, b.String())
	return err
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// unseen is the finding for what could not be read: a note where the server
// refuses it or does not have the command, as the embedded one; a warning where it
// should have answered and did not.
func unseen(check string, err error, fix string) Finding {
	var answered redis.Error
	switch {
	case !errors.As(err, &answered):
		return Finding{Check: check, Severity: Warning, Found: "not checked: " + err.Error()}
	case strings.HasPrefix(answered.Error(), "NOPERM "):
		return Finding{Check: check, Severity: Note, Found: "not checked: this user lacks the right", Fix: fix}
	case strings.HasPrefix(answered.Error(), "ERR unknown command"):
		return Finding{Check: check, Severity: Note, Found: "not checked: this Redis does not support the command"}
	}
	return Finding{Check: check, Severity: Warning, Found: "not checked: " + answered.Error()}
}

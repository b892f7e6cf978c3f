package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/windows"
)

// Options change how Load reads a configuration. The zero value changes nothing.
type Options struct {
	// Algorithm counts all limits; empty: sliding-log.
	Algorithm string
	// Tag names the entry whose value keys have in braces: one partition then counts all descriptors with the same
	// value. Empty: no entry.
	Tag string
	// OnDeny says whether denied hits count, for limits that do not have on_deny; empty: skip.
	OnDeny string
	// MergeDomains takes several files of one domain as one; they may not have the same descriptor at their top.
	MergeDomains bool
	// Shadow makes all limits deny nothing: they count, and statuses say what is over.
	Shadow bool
	// Quota makes all limits quotas (quota_mode).
	Quota bool
	// Unlevelled: the limits have no levels and publish nothing. For a process without workers, which would end levels.
	Unlevelled bool
	// Calendar counts one month and one year by the calendar in that time zone, from its first day; empty:
	// they are 30 and 365 days.
	Calendar string
}

// Validate reports which option has no meaning.
func (o Options) Validate() error {
	if o.OnDeny != "" && o.OnDeny != string(windows.OnDenySkip) && o.OnDeny != string(windows.OnDenyCharge) {
		return fmt.Errorf("on_deny %q: want %s or %s", o.OnDeny, windows.OnDenySkip, windows.OnDenyCharge)
	}
	if o.Algorithm != "" {
		if err := windows.CheckAlgorithm(o.Algorithm); err != nil {
			return err
		}
	}
	if len(o.Tag) > maxTagName {
		return fmt.Errorf("tag %q: want the key of a descriptor's entry, at most %d bytes", o.Tag, maxTagName)
	}
	if o.Calendar != "" {
		if _, err := windows.CalendarWindow(1, "month", o.Calendar, ""); err != nil {
			return fmt.Errorf("calendar: %w", err)
		}
	}
	return nil
}

// window returns the window of a limit.
func (o Options) window(l *rateLimit) (windows.Window, error) {
	byCalendar := l.wire == rlsv3.RateLimitResponse_RateLimit_MONTH || l.wire == rlsv3.RateLimitResponse_RateLimit_YEAR
	if o.Calendar == "" || l.multiplier != 1 || !byCalendar {
		return windows.Window{Limit: l.perUnit, Per: l.per}, nil
	}
	return windows.CalendarWindow(l.perUnit, strings.ToLower(l.wire.String()), o.Calendar, "")
}

func parse(texts []reload.File, o Options) (*Limits, error) {
	var files []*file
	for _, t := range texts {
		f, err := readFile(t.Path, t.Data)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return build(files, o)
}

// filesOf lists the files that make up the configuration. In a mounted ConfigMap they are links, and there are
// directories beside them whose names begin with dots.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	list, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, entry := range list { // sorted by name
		ext := filepath.Ext(entry.Name())
		if entry.IsDir() || strings.HasPrefix(entry.Name(), ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		if entry.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0 { // reading it could block
			return nil, fmt.Errorf("%s: %s is not a regular file", path, entry.Name())
		}
		out = append(out, filepath.Join(path, entry.Name()))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no *.yaml and no *.yml in it", path)
	}
	return out, nil
}

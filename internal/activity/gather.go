package activity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/stream"
)

// Activity is what all processes have published.
type Activity struct {
	Processes []Process
}

// Process is the part of one process.
type Process struct {
	Name, Command string
	AtMs          int64 // when it was published, by the process's clock
	Counts        map[string]Counts
	report        report
}

// Counts of one rule since the process started; Throttled is the present number.
type Counts struct {
	Allowed   int64 `json:"allowed,omitempty"`
	Denied    int64 `json:"denied,omitempty"`
	Events    int64 `json:"events,omitempty"`
	Units     int64 `json:"units,omitempty"` // of Events
	Throttled int64 `json:"throttled,omitempty"`
}

// Gather reads the parts of all processes of the prefix. It writes nothing. A process that did not publish within the
// last 10 s is left out.
func Gather(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (Activity, error) {
	running, err := c.HGetAll(ctx, k.Processes()).Result()
	if err != nil {
		return Activity{}, fmt.Errorf("reading %s: %w", k.Processes(), err)
	}
	names := slices.Sorted(maps.Keys(running))
	pipe := c.Pipeline()
	parts := make([]*redis.StringCmd, len(names))
	for i, name := range names {
		parts[i] = pipe.Get(ctx, k.Activity(name))
	}
	if len(names) > 0 {
		_, _ = pipe.Exec(ctx) // each command has its own error
	}
	var a Activity
	for i, part := range parts {
		text, err := part.Bytes()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return a, fmt.Errorf("reading %s: %w", k.Activity(names[i]), err)
		}
		var r report
		if json.Unmarshal(text, &r) != nil {
			continue // corrupt or foreign; the process writes it again
		}
		a.Processes = append(a.Processes, newProcess(names[i], r))
	}
	return a, nil
}

func newProcess(name string, r report) Process {
	p := Process{Name: name, Command: r.Command, AtMs: r.AtMs, Counts: map[string]Counts{}, report: r}
	for rule, c := range r.Rules {
		if c != nil {
			p.Counts[rule] = c.Counts
		}
	}
	return p
}

// Top returns the n busiest keys of a rule in this minute and the one before.
func (a Activity) Top(rule string, n int) api.TopKeys {
	type bounds struct{ units, less int64 } // less: the part of `unlisted` of minutes that list the key
	keys := map[string]*bounds{}
	out := api.TopKeys{Rule: rule, Keys: []api.TopKey{}}
	var unlisted int64
	for _, p := range a.Processes {
		r := p.report.Rules[rule]
		if r == nil {
			continue
		}
		for _, m := range r.Minutes {
			if out.SinceMs == 0 || m.FromMs < out.SinceMs {
				out.SinceMs = m.FromMs
			}
			out.Units += m.Total
			unlisted += m.Unlisted
			for _, one := range m.Keys {
				b := keys[one.Key]
				if b == nil {
					b = &bounds{}
					keys[one.Key] = b
				}
				b.units += one.Units
				b.less += m.Unlisted - m.Beyond
			}
		}
	}
	for key, b := range keys {
		out.Keys = append(out.Keys, api.TopKey{Key: key, Units: b.units, AtMost: b.units + unlisted - b.less})
	}
	slices.SortFunc(out.Keys, func(x, y api.TopKey) int {
		return cmp.Or(cmp.Compare(y.Units, x.Units), strings.Compare(x.Key, y.Key))
	})
	for len(out.Keys) > n {
		last := len(out.Keys) - 1
		unlisted = max(unlisted, out.Keys[last].AtMost)
		out.Keys = out.Keys[:last]
	}
	out.UnlistedAtMost = unlisted
	return out
}

// Rules returns the names of the rules that were active, in order.
func (a Activity) Rules() []string {
	var names []string
	for _, p := range a.Processes {
		for name, r := range p.report.Rules {
			if r != nil && len(r.Minutes) > 0 && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

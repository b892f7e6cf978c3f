// Package processes reports which processes of a prefix run and with which rules, so that operators notice if two of
// them have different rules. Each process announces itself in one hash every few seconds with announce.lua, which also
// returns the others. Read announcer.go next (how a process announces itself and reports the others).
package processes

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/stream"
)

// Grace is how long processes may run with different rules without a warning: they
// read a changed file at different times, up to a minute apart.
const Grace = 90 * time.Second

var form = regexp.MustCompile(`^([0-9a-f]+) ([0-9]{1,15}) ([0-9]{1,15})$`) // as announce.lua writes it

// Process is a process that runs, and the fingerprint of its rules (windows.Rules.Fingerprint).
type Process struct {
	Name, Fingerprint string
	SinceMs           int64 // when it began to use these rules, by Redis's clock
}

// List returns the running processes, by name, and the time on Redis's clock. It writes nothing.
func List(ctx context.Context, c redis.UniversalClient, k *stream.Keys) (all []Process, nowMs int64, err error) {
	server := c
	if cluster, ok := c.(*redis.ClusterClient); ok { // the clock must be that of the server with the hash
		master, err := cluster.MasterForKey(ctx, k.Processes())
		if err != nil {
			return nil, 0, fmt.Errorf("finding the master of %s: %w", k.Processes(), err)
		}
		server = master
	}
	pipe := server.Pipeline()
	clock, fields := pipe.Time(ctx), pipe.HGetAll(ctx, k.Processes())
	_, _ = pipe.Exec(ctx) // each command has its own error
	if err := errors.Join(clock.Err(), fields.Err()); err != nil {
		return nil, 0, fmt.Errorf("reading %s: %w", k.Processes(), err)
	}
	nowMs = clock.Val().UnixMilli()
	for name, value := range fields.Val() {
		m := form.FindStringSubmatch(value)
		if m == nil {
			continue // foreign; the next announcement removes it
		}
		if until := atoi(m[3]); until >= nowMs {
			all = append(all, Process{Name: name, Fingerprint: m[1], SinceMs: atoi(m[2])})
		}
	}
	slices.SortFunc(all, func(a, b Process) int { return strings.Compare(a.Name, b.Name) })
	return all, nowMs, nil
}

// ByRules groups processes by fingerprint, the largest group first.
func ByRules(all []Process) [][]Process {
	var groups [][]Process
	for _, p := range all {
		i := slices.IndexFunc(groups, func(g []Process) bool { return g[0].Fingerprint == p.Fingerprint })
		if i < 0 {
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], p)
	}
	slices.SortStableFunc(groups, func(a, b []Process) int { return len(b) - len(a) })
	return groups
}

// named is how many processes of one group Words lists.
const named = 4

// Words describes which processes have which rules: "0a1b…: work a, work b; 2c3d…: serve c".
func Words(groups [][]Process) string {
	var out []string
	for _, g := range groups {
		var names []string
		for _, p := range g[:min(named, len(g))] {
			names = append(names, p.Name)
		}
		if len(g) > named {
			names = append(names, fmt.Sprintf("and %d more", len(g)-named))
		}
		out = append(out, g[0].Fingerprint+": "+strings.Join(names, ", "))
	}
	return strings.Join(out, "; ")
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // the form has only digits, and not too many
	return n
}

package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// Transitions returns the alerts and decisions of a key. alerts.History implements it.
type Transitions interface {
	// Alerts returns the newest n alerts before a position, the newest first, and their positions. If before is "", it
	// returns the newest n of all.
	Alerts(ctx context.Context, key, before string, n int) (list []api.Transition, positions []string, err error)
	// Decisions returns the last throttle decision of each rule, the newest first.
	Decisions(ctx context.Context, key string) ([]api.Transition, error)
}

// HistoryRequest asks for a page of the history of a key or a pattern.
type HistoryRequest struct {
	Key, Pattern string
	N            int
	Before       string // Next of the previous page; "": the newest page
	// Changes: the changes that operators made are wanted too.
	Changes bool
}

// The parts that a history can lack.
const (
	noTransitions = "alerts and decisions: this server has no NATS (--nats)"
	natsAway      = "alerts and decisions: NATS does not answer"
)

// source is one of the lists that are merged into a history, the newest first.
type source struct {
	entries []positioned
	reached string // the position of the last entry that was taken
}

type positioned struct {
	position string
	api.HistoryEntry
}

// History merges the alerts, the last decisions and the changes that operators made of a key, the newest first.
// LeftOut names the parts that it could not read.
func (s *Service) History(ctx context.Context, req HistoryRequest) (api.History, error) {
	out := api.History{Entries: []api.HistoryEntry{}}
	out.Key, out.Pattern, out.Network = api.SplitTarget(req.Key, req.Pattern)
	var sources [3]source // alerts, decisions, changes
	positions, err := parseHistoryPositions(req.Before)
	if err != nil {
		return out, err
	}
	for i := range sources {
		sources[i].reached = positions[i]
	}
	if req.Changes {
		if err := s.addChanges(ctx, req, &sources[2]); err != nil {
			return out, err
		}
	} else {
		out.LeftOut = append(out.LeftOut, noChanges)
	}
	switch {
	case req.Pattern != "": // a pattern has no alerts or decisions
	case s.config.Transitions == nil:
		out.LeftOut = append(out.LeftOut, noTransitions)
	default:
		if err := s.addTransitions(ctx, req, sources[:2]); errors.Is(err, api.ErrBadRequest) {
			return out, badHistoryPosition(req.Before)
		} else if err != nil {
			out.LeftOut = append(out.LeftOut, natsAway)
			sources[0].entries, sources[1].entries = nil, nil
		}
	}
	var more bool
	out.Entries, more = mergeHistory(sources[:], req.N)
	if more {
		out.Next = strings.Join([]string{sources[0].reached, sources[1].reached, sources[2].reached}, ",")
	}
	return out, nil
}

func (s *Service) addTransitions(ctx context.Context, req HistoryRequest, into []source) error {
	list, positions, err := s.config.Transitions.Alerts(ctx, req.Key, into[0].reached, req.N+1)
	if err != nil {
		return err
	}
	for i := range list {
		into[0].entries = append(into[0].entries, positioned{positions[i], transition(&list[i])})
	}
	decisions, err := s.config.Transitions.Decisions(ctx, req.Key)
	for i := range decisions {
		position := strconv.FormatInt(decisions[i].AtMs, 10) + "-" + decisions[i].Rule
		if into[1].reached == "" || olderDecision(position, into[1].reached) {
			into[1].entries = append(into[1].entries, positioned{position, transition(&decisions[i])})
		}
	}
	return err
}

func transition(t *api.Transition) api.HistoryEntry {
	return api.HistoryEntry{AtMs: t.AtMs, Transition: t}
}

// olderDecision compares by time, then by rule.
func olderDecision(a, b string) bool {
	aMs, aRule, _ := strings.Cut(a, "-")
	bMs, bRule, _ := strings.Cut(b, "-")
	x, _ := strconv.ParseInt(aMs, 10, 64) // the form was checked
	y, _ := strconv.ParseInt(bMs, 10, 64)
	return x < y || x == y && aRule < bRule
}

// mergeHistory takes the newest n entries of all sources, and reports whether there are more.
func mergeHistory(sources []source, n int) (out []api.HistoryEntry, more bool) {
	out = []api.HistoryEntry{}
	for {
		newest := -1
		for i, s := range sources {
			if len(s.entries) > 0 && (newest < 0 || s.entries[0].AtMs > sources[newest].entries[0].AtMs) {
				newest = i
			}
		}
		if newest < 0 || len(out) == n {
			return out, newest >= 0
		}
		s := &sources[newest]
		out = append(out, s.entries[0].HistoryEntry)
		s.reached, s.entries = s.entries[0].position, s.entries[1:]
	}
}

var historyPositions = regexp.MustCompile(`^(([0-9]+)-[0-9]{1,15})?,([0-9]{1,15}-[a-z0-9-]{1,64})?,` +
	`(([0-9]+)-([0-9]+))?$`)

func parseHistoryPositions(text string) (positions [3]string, err error) {
	if text == "" {
		return positions, nil
	}
	m := historyPositions.FindStringSubmatch(text)
	if m == nil || strings.Trim(m[4], "0") == "-" { // Redis has no such entry, and refuses to look before it
		return positions, badHistoryPosition(text)
	}
	for _, number := range []string{m[2], m[5], m[6]} {
		if _, err := strconv.ParseUint(number, 10, 64); number != "" && err != nil {
			return positions, badHistoryPosition(text)
		}
	}
	return [3]string{m[1], m[3], m[4]}, nil
}

func badHistoryPosition(text string) error {
	return fmt.Errorf("%w: before=%s, expected `next` of a page", api.ErrBadRequest, api.Shorten(text))
}

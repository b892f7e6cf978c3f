package crowdsec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// world is a feed whose source and clock a test sets.
type world struct {
	*Feed
	testkit.Words
	t     *testing.T
	nowMs int64
	list  []api.Throttled
	err   error
	scans int
}

func newWorld(t *testing.T, rules ...string) *world {
	t.Helper()
	w := &world{Words: testkit.Words{Failer: t}, t: t, nowMs: 1_700_000_000_000}
	w.Feed = NewFeed(Config{Rules: rules, Now: func() int64 { return w.nowMs },
		Throttled: func(context.Context) iter.Seq2[api.Throttled, error] {
			w.scans++
			return func(yield func(api.Throttled, error) bool) {
				for _, one := range w.list {
					if !yield(one, nil) {
						return
					}
				}
				if w.err != nil {
					yield(api.Throttled{}, w.err)
				}
			}
		}})
	return w
}

// throttle adds throttled keys: "key rule seconds", 0 for ever.
func (w *world) throttle(list ...string) {
	for _, one := range list {
		var key, rule string
		var seconds int64
		_, err := fmt.Sscanf(one, "%s %s %d", &key, &rule, &seconds)
		testkit.Must(w.t, err)
		rule, shadow := strings.CutSuffix(rule, "~")
		row := api.Throttled{Key: key, Rule: rule, SinceMs: 1, Shadow: shadow}
		if seconds != 0 {
			row.UntilMs = w.nowMs + seconds*1000
		}
		w.list = append(w.list, row)
	}
}

func (w *world) filter(query string) (Filter, error) {
	w.t.Helper()
	q, err := url.ParseQuery(query)
	testkit.Must(w.t, err)
	return ParseFilter(q)
}

// pull is a bouncer's next pull, a second after what was before, as "+value duration -value".
func (w *world) pull(bouncer, query string) string {
	w.t.Helper()
	w.nowMs += 1000
	filter, err := w.filter(query)
	testkit.Must(w.t, err)
	c, told, err := w.Pull(w.t.Context(), bouncer, strings.Contains(query, "startup=true"), filter)
	testkit.Must(w.t, err)
	told()
	var out []string
	for _, d := range c.New {
		out = append(out, "+"+d.Value+" "+d.Duration)
	}
	for _, d := range c.Deleted {
		out = append(out, "-"+d.Value)
	}
	return strings.Join(out, " ")
}

// A story is a file of testdata, with blocks between empty lines, each of a feed of its own, and one step a line:
//
//	rules api login                 those whose throttles are decisions
//	throttled KEY RULE SECONDS, …   who is throttled now, a shadow rule with ~, 0 for ever; more … beside these
//	ends ADDRESS 600ms              its end moves
//	pull BOUNCER QUERY              a second after what was before: what is new, and what is deleted
//	deleted BOUNCER                 what it hears of those, in full; lost: an answer that does not reach it
//	active QUERY                    the decisions that stand; form: these and a pull, as JSON
//	scans, remembered               how often Redis was looked at, how many deletions are known; keeps N: at most
//	redis away                      it does not answer
//	advance 1s                      time passes
//
// go test ./internal/crowdsec -run Stories -update writes the lines that begin with <. A reviewer reads them.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, _ string, steps []string) []string {
		var w *world
		return testkit.Steps(steps, "<", func(line string) []string {
			word, rest, _ := strings.Cut(line, " ")
			if word == "rules" {
				w = newWorld(t, strings.Fields(rest)...)
				return nil
			}
			said, answers := w.step(word, rest)
			if !answers {
				return nil
			}
			return []string{strings.TrimRight(" "+said, " ,")}
		})
	})
}

// step does one step, and returns its output.
func (w *world) step(word, rest string) (said string, answers bool) {
	w.t.Helper()
	who, query, _ := strings.Cut(rest, " ")
	switch word {
	case "throttled", "more":
		if word == "throttled" {
			w.list = nil
		}
		if rest != "" {
			w.throttle(strings.Split(rest, ", ")...)
		}
	case "ends":
		for i := range w.list {
			if w.list[i].Key == "ip:"+who {
				w.list[i].UntilMs += w.Duration(query).Milliseconds()
			}
		}
	case "advance":
		w.nowMs += w.Duration(rest).Milliseconds()
	case "redis":
		if w.err = nil; rest == "away" {
			w.err = errors.New("away")
		}
	case "pull":
		return w.pull(who, query), true
	case "lost", "deleted":
		c, _, err := w.Pull(w.t.Context(), who, false, Filter{})
		return fmt.Sprint("new ", words(c.New), "deleted ", words(c.Deleted), "error ", err), true
	case "active":
		f, err := w.filter(rest)
		if err != nil {
			return fmt.Sprint(errors.Is(err, api.ErrBadRequest), " ", err), true
		}
		list, err := w.Active(w.t.Context(), f)
		if err != nil {
			return err.Error(), true
		}
		return words(list), true
	case "form":
		list, err := w.Active(w.t.Context(), Filter{})
		testkit.Must(w.t, err)
		c, _, err := w.Pull(w.t.Context(), "form", true, Filter{})
		testkit.Must(w.t, err)
		text, err := json.Marshal([]any{list, c})
		testkit.Must(w.t, err)
		return string(text), true
	case "scans":
		return fmt.Sprint(w.scans), true
	case "keeps":
		_, err := fmt.Sscan(rest, &w.mostKept)
		testkit.Must(w.t, err)
	case "remembered":
		return fmt.Sprint(len(w.deleted)), true
	default:
		w.t.Fatalf("no such step: %s %s", word, rest)
	}
	return "", false
}

func words(list []Decision) (text string) {
	for _, d := range list {
		text += d.Value + " " + d.Duration + " " + d.Scenario + ", "
	}
	return text
}

// A pull without changes sorts and copies nothing, however many decisions are in effect.
func TestPullsOfNothingNewAreSmall(t *testing.T) {
	w := newWorld(t, "api")
	for i := range 2_000 {
		w.throttle(fmt.Sprintf("ip:10.0.%d.%d api 600", i>>8, i&255))
	}
	w.pull("a", "startup=true")
	if n := testing.AllocsPerRun(5, func() {
		c, _, err := w.Pull(t.Context(), "a", false, Filter{})
		if err != nil || len(c.New) != 0 {
			t.Error(c, err)
		}
	}); n > 5 {
		t.Errorf("%v allocations", n)
	}
}

// A caller that leaves during a scan of Redis does not end the scan for the callers that wait for it too.
func TestWhoGoesEndsNoScan(t *testing.T) {
	scans, answer := make(chan context.Context), make(chan struct{})
	f := NewFeed(Config{Now: func() int64 { return 1 },
		Throttled: func(ctx context.Context) iter.Seq2[api.Throttled, error] {
			scans <- ctx
			<-answer
			return func(yield func(api.Throttled, error) bool) {
				yield(api.Throttled{Key: "ip:192.0.2.1", Rule: api.OverrideRule}, ctx.Err())
			}
		}})
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error)
	go func() { _, err := f.Active(ctx, Filter{}); first <- err }()
	scan := <-scans
	leave()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("who went got %v", err)
	}
	if end, bounded := scan.Deadline(); scan.Err() != nil || !bounded || time.Until(end) < time.Second {
		t.Errorf("the look has ended with %v, or is not bounded: %v", scan.Err(), end)
	}
	close(answer)
	if list, err := f.Active(t.Context(), Filter{}); err != nil || len(list) != 1 {
		t.Errorf("who stayed got %v %v", list, err)
	}
}

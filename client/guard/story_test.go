package guard

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/subscription"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// story is a guard that receives what a story says. Its steps, whose results follow as "> ":
//
//	guard [N]                        another guard begins, which holds at most N keys
//	throttled RULE KEY TIME [@TIME]  a decision that expires so long after it was made; default: it is made now
//	released RULE KEY [@TIME]        the decision has ended
//	snapshot                         NATS has a snapshot without decisions
//	pass TIME                        time passes
//	sweep                            what has expired is removed
//	wait NAME KEY, leave NAME        somebody waits for releases of a key, and waits no longer
//	key KEY                          what the guard says of a key
//	stats                            what it has counted
type story struct {
	t     *testing.T
	guard *Guard
	now   *int64
	waits map[string]<-chan struct{}
	stop  map[string]func()
}

func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, _ string, steps []string) []string {
		s := &story{t: t}
		return testkit.Steps(steps, "> ", func(step string) []string {
			return append(s.told(strings.Fields(step)), s.changes()...)
		})
	})
}

func (s *story) told(words []string) []string {
	switch words[0] {
	case "guard":
		most, _ := strconv.Atoi(append(words, "0")[1])
		s.guard, s.now = deaf(s.t, Config{MaxKeys: most, OnChange: func(Change) {}})
		s.waits, s.stop = map[string]<-chan struct{}{}, map[string]func(){}
	case "throttled", "released":
		made, lasts := *s.now, int64(0)
		if at, ok := strings.CutPrefix(words[len(words)-1], "@"); ok {
			made = t0 + s.ms(at)
		}
		if words[0] == "throttled" {
			lasts = s.ms(words[3])
		}
		s.guard.apply(message(s.t, words[1], words[2], api.State(words[0]), made, made+lasts))
	case "snapshot":
		s.guard.take(subscription.Delivery{Begin: true})
		s.guard.take(subscription.Delivery{Whole: true})
	case "pass":
		*s.now += s.ms(words[1])
	case "sweep":
		sweepAll(s.guard)
	case "wait":
		s.waits[words[1]], s.stop[words[1]] = s.guard.Released(words[2])
	case "leave":
		s.stop[words[1]]()
		return []string{fmt.Sprintf("for %d keys somebody waits", len(s.guard.waiting.keys))}
	case "key":
		d, ok := s.guard.Lookup(words[1])
		if ok != s.guard.Throttled(words[1]) {
			s.t.Errorf("Lookup says %t, Throttled another thing", ok)
		}
		return []string{map[bool]string{true: "throttled by " + d.Rule, false: "free"}[ok]}
	case "stats":
		return []string{fmt.Sprintf("%+v", s.guard.Stats())}
	default:
		s.t.Fatalf("unknown step %q", words)
	}
	return nil
}

// changes returns what OnChange, key by key, and those who wait have received.
func (s *story) changes() (lines []string) {
	var list []Change
	for len(s.guard.changes) > 0 {
		list = append(list, <-s.guard.changes)
	}
	slices.SortStableFunc(list, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	for _, c := range list {
		lines = append(lines, fmt.Sprintf("%s: %s, %s", c.Key, c.State, c.Reason))
	}
	for _, name := range slices.Sorted(maps.Keys(s.waits)) {
		select {
		case <-s.waits[name]:
			lines = append(lines, name+" receives a release")
		default:
		}
	}
	return lines
}

func (s *story) ms(text string) int64 {
	d, err := time.ParseDuration(text)
	testkit.Must(s.t, err)
	return d.Milliseconds()
}

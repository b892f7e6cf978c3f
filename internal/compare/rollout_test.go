package compare

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// tableOrDate matches lines whose text depends on the time zone of the machine.
var tableOrDate = regexp.MustCompile(`^KEY |\d-\d\d-\d`)

// The rollout shows who would have been denied and throttled, when and for how long, by each rule as if only it were
// enforced. A story is the rules and the lines of a trace. Its result is the JSON, and the text without its tables.
func TestRollOut(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, above string, steps []string) []string {
		rules, err := windows.Parse("rules.yml", []byte(above))
		testkit.Must(t, err)
		lines := slices.DeleteFunc(steps, func(line string) bool { return strings.HasPrefix(line, "> ") })
		trace, err := ReadTrace("x", strings.NewReader(strings.Join(lines, "\n")), anything)
		testkit.Must(t, err)
		got, err := RollOut(t.Context(), rules, trace)
		testkit.Must(t, err)
		told, err := json.MarshalIndent(got, "", "  ")
		testkit.Must(t, err)
		var text strings.Builder
		testkit.Must(t, got.WriteText(&text))
		for line := range strings.SplitSeq(string(told)+"\n"+text.String(), "\n") {
			if line != "" && !tableOrDate.MatchString(line) {
				lines = append(lines, "> "+line)
			}
		}
		return lines
	})
}

// valuesTrace returns a trace whose requests have users and addresses; some requests have no user.
func valuesTrace(n int) Trace {
	draw, ms := rand.New(rand.NewPCG(7, 0)), int64(start)
	t := Trace{Name: "values"}
	for range n {
		ms += draw.Int64N(400)
		r := Request{Ms: ms, Key: fmt.Sprintf("k:%d", draw.IntN(2)), Cost: 1,
			Values: map[string]string{"ip": fmt.Sprint("10.0.0.", draw.IntN(8))}}
		if draw.IntN(20) > 0 {
			r.Values["user"] = string([]rune{[]rune("abcdeABCDE")[draw.IntN(10)]})
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

// The rollout counts values directly from their definition. The rule's own windows in Redis return the same verdict
// for each request of a trace, and throttle each key at the same times.
func TestValuesEqualThoseInRedis(t *testing.T) {
	trace := valuesTrace(600)
	for _, onDeny := range []windows.OnDeny{windows.OnDenySkip, windows.OnDenyCharge} {
		rules, err := windows.NewRules([]*windows.Rule{{Name: "values", Match: "*", OnDeny: onDeny,
			Windows: []windows.Window{
				{Limit: 3, Per: 2 * time.Second, Distinct: "user", Normalize: windows.Normalize{Lower: true}},
				{Limit: 4, Per: 5 * time.Second, Distinct: "user", Normalize: windows.Normalize{Lower: true}},
				{Limit: 5, Per: 4 * time.Second, Distinct: "ip"}, {Limit: 11, Per: 6 * time.Second}}}})
		testkit.Must(t, err)
		got, err := RollOut(t.Context(), rules, trace)
		testkit.Must(t, err)
		t.Run(string(onDeny), func(t *testing.T) {
			streamtest.EachRedis(t, func(t *testing.T, c *redis.Client) {
				want := throttledInRedis(t, c, rules, trace)
				if len(got.Rules[0].Throttled) != 2 || len(want) != 2 {
					t.Fatalf("throttled %+v, in Redis %+v", got.Rules[0].Throttled, want)
				}
				for _, k := range got.Rules[0].Throttled {
					w := want[k.Key]
					if k.Denied != w.Denied || k.Denied < 30 || len(k.Times) < 10 {
						t.Errorf("%s: denied %d in %d times, in Redis %d", k.Key, k.Denied, len(k.Times), w.Denied)
					}
					if onDeny == windows.OnDenySkip && !slices.Equal(k.Times, w.Times) {
						t.Errorf("%s: throttled\n%v, in Redis\n%v", k.Key, k.Times, w.Times)
					}
				}
			})
		})
	}
}

func throttledInRedis(t *testing.T, c *redis.Client, rules *windows.Rules, trace Trace) map[string]*KeyRollout {
	t.Helper()
	now, counter := int64(0), counters.New(c, streamtest.Keys(t, 4))
	counter.Now = func() int64 { return now }
	testkit.Must(t, counter.RecordRules(t.Context(), rules))
	plan, out := rules.PlanOf(rules.List()[0]), map[string]*KeyRollout{}
	for _, r := range trace.Requests {
		values, err := plan.Values(func(name string) string { return r.Values[name] })
		if err != nil {
			continue
		}
		now = r.Ms
		v, err := counter.Check(t.Context(), []counters.Request{{Plan: plan, Key: r.Key, Cost: 1, Values: values}})
		testkit.Must(t, err)
		key := out[r.Key]
		if key == nil {
			key = &KeyRollout{Key: r.Key}
			out[r.Key] = key
		}
		if !v.Allowed {
			key.Denied++
		}
		until := int64(0)
		for _, w := range v.Items[0].Windows {
			if w.Used >= w.Limit {
				until = max(until, r.Ms+w.NextFreeMs)
			}
		}
		key.throttled(r.Ms, until)
	}
	return out
}

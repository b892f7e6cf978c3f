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
	t     *testing.T
	nowMs int64
	list  []api.Throttled
	err   error
	scans int
}

func newWorld(t *testing.T, rules ...string) *world {
	t.Helper()
	w := &world{t: t, nowMs: 1_700_000_000_000}
	var err error
	w.Feed, err = NewFeed(Config{Rules: rules, Now: func() int64 { return w.nowMs },
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
	testkit.Must(t, err)
	return w
}

// throttle sets who is throttled: "key rule seconds", 0 for ever.
func (w *world) throttle(list ...string) {
	w.list = nil
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

func (w *world) throttleOne(key string) {
	w.list = append(w.list, api.Throttled{Key: key, Rule: "api", SinceMs: 1, UntilMs: w.nowMs + 600_000})
}

func (w *world) advance(d time.Duration) { w.nowMs += d.Milliseconds() }

func (w *world) filter(query string) Filter {
	w.t.Helper()
	q, err := url.ParseQuery(query)
	testkit.Must(w.t, err)
	f, err := ParseFilter(q)
	testkit.Must(w.t, err)
	return f
}

// pull is a bouncer's next pull, a second after what was before, as "+value duration -value".
func (w *world) pull(bouncer, query string) string {
	w.t.Helper()
	w.advance(time.Second)
	c, told, err := w.Pull(w.t.Context(), bouncer, strings.Contains(query, "startup=true"), w.filter(query))
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

func (w *world) wantPull(bouncer, query, want string) {
	w.t.Helper()
	if got := w.pull(bouncer, query); got != want {
		w.t.Errorf("%s pulls %q, want %q", bouncer, got, want)
	}
}

func (w *world) wantActive(query, want string) {
	w.t.Helper()
	list, err := w.Active(w.t.Context(), w.filter(query))
	testkit.Must(w.t, err)
	var out []string
	for _, d := range list {
		out = append(out, d.Value+" "+d.Duration+" "+d.Scenario)
	}
	if got := strings.Join(out, ", "); got != want {
		w.t.Errorf("%s: %q, want %q", query, got, want)
	}
}

// Which keys are decisions: those of the rules, and blocks; not shadows, what is no client's address, or
// what is over.
func TestWhichKeysAreDecisions(t *testing.T) {
	w := newWorld(t, "api")
	w.throttle("ip:192.0.2.1 api 60", "ip:2001:db8::1 api 60", "ip:2001:db8:1::/64 api 60",
		"ip:::ffff:192.0.2.2 api 60",
		"ip:192.0.2.3 override 0", "ip:192.0.2.4 override 100000",
		"ip:192.0.2.5 login 60", "ip:192.0.2.6 api~ 60", "user:192.0.2.7 api 60", "ip:192.0.2.8 api -1",
		"ip:0.0.0.0 api 60", "ip:::: api 60", "ip::: api 60", "ip:127.0.0.1 api 60", "ip:::1 api 60",
		"ip:224.0.0.1 api 60", "ip:0.0.0.0/0 api 60", "ip:10.0.0.0/8 api 60", "ip:2000::/3 api 60",
		"ip:fe80::1%eth0 api 60", "ip:192.0.2.9:80 api 60", "ip: api 60", "ip:x api 60")
	w.wantActive("", "192.0.2.1 1m0s api, 192.0.2.2 1m0s api, 192.0.2.3 4h0m0s override, 192.0.2.4 4h0m0s override, "+
		"2001:db8::1 1m0s api, 2001:db8:1::/64 1m0s api")
}

// Two keys can be one address: the one that stands longest is the decision.
func TestOneDecisionForAnAddress(t *testing.T) {
	w := newWorld(t, "api", "login")
	w.throttle("ip:192.0.2.1 api 60", "ip:::ffff:192.0.2.1 login 90", "ip:192.0.2.1/32 api 30")
	w.wantActive("", "192.0.2.1 1m30s login")
	w.wantPull("a", "startup=true", "+192.0.2.1 1m29s")
	w.advance(time.Second)
	w.throttle("ip:192.0.2.1 api 60")
	w.wantPull("a", "", "+192.0.2.1 59s")
	w.throttle()
	w.wantPull("a", "", "-192.0.2.1")
}

func TestFilters(t *testing.T) {
	w := newWorld(t, "api", "Login")
	w.throttle("ip:192.0.2.1 api 60", "ip:192.0.2.9 Login 60", "ip:2001:db8::/64 api 60")
	const one, nine, net = "192.0.2.1 1m0s api", "192.0.2.9 1m0s Login", "2001:db8::/64 1m0s api"
	for _, c := range [][2]string{
		{"ip=192.0.2.1", one}, {"ip=::ffff:192.0.2.1", one}, {"ip=192.0.2.2", ""}, {"ip=2001:db8::77", net},
		{"ip=2001:db8:1::77", ""}, {"range=192.0.2.0/24", ""}, {"range=192.0.2.0/24&contains=false", one + ", " + nine},
		{"range=192.0.2.1/32", one}, {"range=2001:db8::/96", net}, {"range=2001:db8::/48", ""},
		{"range=2001:db8::/48&contains=false", net}, {"range=0.0.0.0/0&contains=false", one + ", " + nine},
		{"type=ban", one + ", " + nine + ", " + net}, {"type=captcha", ""},
		{"scope=Ip", one + ", " + nine}, {"scope=range", net}, {"scopes=ip,range", one + ", " + nine + ", " + net},
		{"scopes=country,as", ""}, {"value=192.0.2.9", nine}, {"value=192.0.2", ""},
		{"origins=streamcounter,cscli", one + ", " + nine + ", " + net}, {"origins=CAPI", ""},
		{"scenarios_containing=log,x", nine}, {"scenarios_not_containing=API,x", nine},
		{"scenarios_containing=o&scenarios_not_containing=gin", ""},
		{"scenarios_containing=", one + ", " + nine + ", " + net},
		{"dedup=false&unheard=of", one + ", " + nine + ", " + net},
	} {
		w.wantActive(c[0], c[1])
	}
	for _, query := range []string{"ip=x", "ip=fe80::1%25eth0", "range=192.0.2.0/33", "range=::ffff:192.0.2.0/120",
		"contains=maybe", "ip=1.2.3.4,1.2.3.5"} {
		q, err := url.ParseQuery(query)
		testkit.Must(t, err)
		if _, err := ParseFilter(q); !errors.Is(err, api.ErrBadRequest) || !strings.Contains(err.Error(), q.Get("ip")) {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// Each bouncer hears of each change once, and at its startup of all.
func TestBouncersHearOfChanges(t *testing.T) {
	w := newWorld(t, "api")
	w.wantPull("a", "startup=true", "")
	w.throttle("ip:192.0.2.1 api 61")
	w.wantPull("a", "", "+192.0.2.1 1m0s")
	w.wantPull("a", "startup=false", "")
	w.wantPull("b", "startup=false", "+192.0.2.1 58s") // was never here
	w.throttle("ip:192.0.2.2 api 61")
	w.wantPull("a", "", "+192.0.2.2 1m0s -192.0.2.1")
	w.wantPull("a", "", "")
	w.wantPull("b", "", "+192.0.2.2 58s -192.0.2.1")
	w.wantPull("a", "startup=true", "+192.0.2.2 57s -192.0.2.1")
	w.throttle("ip:192.0.2.1 api 61", "ip:192.0.2.2 api 61")
	w.wantPull("a", "", "+192.0.2.1 1m0s +192.0.2.2 1m0s") // its end moved, and the other is here again
	w.wantPull("b", "startup=true", "+192.0.2.1 59s +192.0.2.2 59s")
}

// What a bouncer hears of addresses that were released: each once, whatever became of it, in the order of
// addresses, as over, and nothing of those that it does not take.
func TestDeletions(t *testing.T) {
	w := newWorld(t, "api", "login")
	w.wantPull("all", "startup=true", "")
	w.wantPull("login", "startup=true&scenarios_containing=login", "")
	w.throttle("ip:192.0.2.2 api 600", "ip:192.0.2.1 api 600")
	w.wantPull("other", "", "+192.0.2.1 9m59s +192.0.2.2 9m59s")
	w.throttle("ip:192.0.2.2 login 600")
	w.pull("other", "")
	w.throttle()
	w.advance(time.Second)
	w.wantActive("", "")
	w.advance(time.Minute)
	c, _, err := w.Pull(t.Context(), "all", false, Filter{})
	testkit.Must(t, err)
	var got []string
	for _, d := range c.Deleted {
		got = append(got, d.Value+" "+d.Duration+" "+d.Scenario)
	}
	if len(c.New) != 0 || strings.Join(got, ", ") != "192.0.2.1 -1m0s api, 192.0.2.2 -59s login" {
		t.Errorf("%v, deleted %q", c.New, got)
	}
	w.wantPull("login", "scenarios_containing=login", "-192.0.2.2")
	w.nowMs -= 3_600_000 // the clock steps back: what is over stays over
	c, _, err = w.Pull(t.Context(), "all", false, Filter{})
	if err != nil || len(c.Deleted) != 2 || c.Deleted[0].Duration != "0s" {
		t.Errorf("%v %v", c.Deleted, err)
	}
}

// A decision that ended since Redis was looked at is not given.
func TestDecisionsThatEndBetweenScans(t *testing.T) {
	w := newWorld(t, "api")
	w.throttle("ip:192.0.2.1 api 1")
	w.list[0].UntilMs -= 500
	w.wantActive("", "192.0.2.1 1s api")
	w.advance(500 * time.Millisecond)
	w.wantActive("", "")
	if w.scans != 1 {
		t.Errorf("%d scans", w.scans)
	}
}

// A pull that has nothing to tell sorts and copies nothing, however many decisions stand.
func TestPullsOfNothingNewAreSmall(t *testing.T) {
	w := newWorld(t, "api")
	for i := range 10_000 {
		w.throttleOne(fmt.Sprintf("ip:10.0.%d.%d", i>>8, i&255))
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

// One that takes a rule's decisions alone hears that they are over where another rule goes on.
func TestAnotherRuleGoesOn(t *testing.T) {
	w := newWorld(t, "api", "login")
	w.throttle("ip:192.0.2.1 api 61")
	w.wantPull("all", "", "+192.0.2.1 1m0s")
	w.wantPull("api", "scenarios_containing=api", "+192.0.2.1 59s")
	w.throttle("ip:192.0.2.1 login 60")
	w.wantPull("api", "scenarios_containing=api", "-192.0.2.1")
	w.wantPull("all", "", "+192.0.2.1 58s")
	w.list[0].Rule = "api" // until the same time
	w.wantPull("all", "", "+192.0.2.1 57s")
	w.throttle("ip:192.0.2.1 login 100000")
	w.wantPull("all", "", "+192.0.2.1 4h0m0s")
	w.list[0].Rule = "api"
	w.wantPull("all", "", "+192.0.2.1 4h0m0s")
}

// What stands for long is announced for four hours, and again when under two are left.
func TestLongBlocksAreAnnouncedAgain(t *testing.T) {
	w := newWorld(t)
	w.throttle("ip:192.0.2.1 override 0")
	w.wantPull("a", "startup=true", "+192.0.2.1 4h0m0s")
	w.advance(time.Hour + 59*time.Minute)
	w.wantPull("a", "", "")
	w.advance(time.Minute)
	w.wantPull("a", "", "+192.0.2.1 4h0m0s")
	w.wantPull("a", "", "")
	w.throttle("ip:192.0.2.1 override 61") // the operator made it shorter
	w.wantPull("a", "", "+192.0.2.1 1m0s")
	w.wantPull("a", "", "")
}

// An end that creeps is told once it is a second off, however small its steps.
func TestEndsThatCreep(t *testing.T) {
	w := newWorld(t, "api")
	w.throttle("ip:192.0.2.1 api 60")
	w.wantPull("a", "", "+192.0.2.1 59s")
	w.list[0].UntilMs += 600
	w.wantPull("a", "", "")
	w.list[0].UntilMs += 600
	w.wantPull("a", "", "+192.0.2.1 59s")
}

// An answer that a bouncer did not get is given again.
func TestAnswersThatWereLost(t *testing.T) {
	w := newWorld(t, "api")
	w.wantPull("a", "startup=true", "")
	w.throttle("ip:192.0.2.1 api 61")
	w.advance(time.Second)
	if c, _, err := w.Pull(t.Context(), "a", false, Filter{}); err != nil || len(c.New) != 1 {
		t.Fatal(c, err)
	}
	w.wantPull("a", "", "+192.0.2.1 59s")
}

// Deletions are forgotten when no bouncer can hold what was deleted; who was away for longer gets all.
func TestDeletionsAreForgotten(t *testing.T) {
	w := newWorld(t, "api")
	w.throttle("ip:192.0.2.1 api 61", "ip:192.0.2.2 override 0")
	w.wantPull("a", "startup=true", "+192.0.2.1 1m0s +192.0.2.2 4h0m0s")
	w.throttle("ip:192.0.2.2 override 0")
	w.wantPull("b", "", "+192.0.2.2 4h0m0s -192.0.2.1")
	w.advance(longest)
	w.wantPull("b", "", "+192.0.2.2 4h0m0s")
	if len(w.deleted) != 0 {
		t.Errorf("%d deletions are remembered", len(w.deleted))
	}
}

// Of too many deletions the oldest are forgotten, and who has not heard of those gets all again.
func TestTooManyDeletions(t *testing.T) {
	w := newWorld(t, "api")
	w.throttle("ip:192.0.2.1 api 3600")
	stays := w.list[0]
	w.wantPull("a", "startup=true", "+192.0.2.1 59m59s")
	w.wantPull("b", "startup=true", "+192.0.2.1 59m58s")
	half := func(net int) {
		for i := range maxDeletions/2 + 1 {
			w.list = append(w.list, api.Throttled{Key: fmt.Sprintf("ip:10.%d.%d.%d", net+i>>16, i>>8&255, i&255),
				Rule:    "api",
				SinceMs: 1, UntilMs: w.nowMs + 60_000})
		}
		w.pull("b", "")
		w.list = []api.Throttled{stays}
		w.pull("b", "")
	}
	half(0)
	w.wantPull("b", "", "")
	half(100)
	if len(w.deleted) != maxDeletions {
		t.Errorf("%d deletions are remembered, want %d", len(w.deleted), maxDeletions)
	}
	if got := w.pull("a", ""); !strings.HasPrefix(got, "+192.0.2.1 59m") {
		t.Errorf("who was away for too long does not get all: %.100s", got)
	}
	w.wantPull("b", "", "")
}

// Bouncers share one scan a second; what Redis does not answer changes nothing.
func TestScans(t *testing.T) {
	w := newWorld(t, "api")
	w.throttle("ip:192.0.2.1 api 61")
	w.wantPull("a", "", "+192.0.2.1 1m0s")
	for range 10 {
		w.wantActive("ip=192.0.2.1", "192.0.2.1 1m0s api")
	}
	if w.scans != 1 {
		t.Errorf("%d scans within a second", w.scans)
	}
	w.list, w.err = nil, errors.New("away")
	w.advance(time.Second)
	if _, _, err := w.Pull(t.Context(), "a", false, Filter{}); err == nil {
		t.Error("no error of a scan that failed")
	}
	if _, err := w.Active(t.Context(), Filter{}); err == nil {
		t.Error("no error of a scan that failed")
	}
	w.err = nil
	w.wantPull("a", "", "-192.0.2.1")
	w.nowMs -= 3_600_000 // the clock steps back
	w.throttle("ip:192.0.2.1 api 60")
	w.wantActive("", "192.0.2.1 1m0s api")
}

// Who goes while Redis is looked at ends nothing for those who wait for the same look.
func TestWhoGoesEndsNoScan(t *testing.T) {
	scans, answer := make(chan context.Context), make(chan struct{})
	f, err := NewFeed(Config{Now: func() int64 { return 1 },
		Throttled: func(ctx context.Context) iter.Seq2[api.Throttled, error] {
			scans <- ctx
			<-answer
			return func(yield func(api.Throttled, error) bool) {
				yield(api.Throttled{Key: "ip:192.0.2.1", Rule: api.OverrideRule}, ctx.Err())
			}
		}})
	testkit.Must(t, err)
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

// The form is that of CrowdSec's local API, down to what is null.
func TestForm(t *testing.T) {
	w := newWorld(t, "api")
	form := func(v any) string {
		text, err := json.Marshal(v)
		testkit.Must(t, err)
		return string(text)
	}
	list, err := w.Active(t.Context(), Filter{})
	testkit.Must(t, err)
	c, _, err := w.Pull(t.Context(), "a", true, Filter{})
	testkit.Must(t, err)
	if got := form(list) + form(c); got != `null{"new":null,"deleted":null}` {
		t.Errorf("empty answers are %s", got)
	}
	w.throttle("ip:192.0.2.1 api 61")
	w.wantPull("b", "", "+192.0.2.1 1m0s")
	list, err = w.Active(t.Context(), Filter{})
	testkit.Must(t, err)
	want := fmt.Sprintf(`[{"duration":"1m0s","id":%d,"origin":"streamcounter","scenario":"api","scope":"Ip",`+
		`"type":"ban","value":"192.0.2.1"}]`, list[0].ID)
	if got := form(list); got != want || list[0].ID == 0 || list[0].ID >= 1<<53 {
		t.Errorf("%s, want %s", got, want)
	}
	other := newWorld(t, "api") // another process, or this one after a restart
	other.list = w.list
	again, err := other.Active(t.Context(), Filter{})
	testkit.Must(t, err)
	if again[0].ID != list[0].ID {
		t.Errorf("another process gives the id %d, this one %d", again[0].ID, list[0].ID)
	}
}

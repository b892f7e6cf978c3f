package check

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A story is a file of testdata: what it shows, a line of dashes, and one step a line. The answer to a step follows
// it, and go test ./check -run Stories -update writes it.
//
//	begin 100: {…}, {…}       a process that remembers so many denials, with nothing counted, under these rules
//	rules: {…}                its rules are others
//	> k 3 charge              a check of a key, with a cost and a mode; idem=a has an idempotency key, first=a says
//	                          also that it is the first attempt; late: its caller's deadline has passed
//	> 30x user:# 3 +5ms       the same 30 times, and after each one some time passes; # is its number
//	all a 2, b -1             one call of several keys; a cost below 0 is given back
//	each a 2, b first=a       several keys, each decided alone
//	+ 50ms, stopped 50ms      time passes; the process is stopped meanwhile
//	reset, refund, charge     by another process, of a key and a number of units
//	forget, giveback          a reset and a refund by the process itself
//	override k 5000 30ms      another process gives a key a limit a second, for some time; "block" or "none" as well
//
// The function steps describes the other steps. A denial says when the key is free, since the beginning.
type story struct {
	*processes
	t     *testing.T
	one   *process
	calls func() int // scripts since the last step
	ran   int        // scripts in the last step
	held  string     // the last reservation
	got   api.CheckAnswer
	late  func() // an answer of Redis that comes late
}

const beginning = 1_700_000_000_000

func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, _ string, steps []string) []string {
		s := &story{t: t}
		return testkit.Steps(steps, "< ", func(line string) []string {
			defer func() { s.ran = s.calls() }()
			return s.step(line)
		})
	})
}

// args are the words of a step.
type args struct {
	t     *testing.T
	words []string
}

func (a args) key() string { return a.words[0] }

// units is the number after the key.
func (a args) units() int64 {
	if len(a.words) < 2 {
		return 1
	}
	n, err := strconv.ParseInt(a.words[1], 10, 64)
	testkit.Must(a.t, err)
	return n
}

// duration is the last word.
func (a args) duration() time.Duration {
	d, err := time.ParseDuration(a.words[len(a.words)-1])
	testkit.Must(a.t, err)
	return d
}

func (s *story) step(line string) []string {
	verb, rest, _ := strings.Cut(line, " ")
	if name, rules, ok := strings.Cut(line, ": {"); ok {
		s.begin(strings.TrimPrefix(strings.TrimPrefix(name, "begin"), " "), name == "rules", "{"+rules)
		return nil
	}
	do := s.steps()[verb]
	if do == nil {
		s.t.Fatalf("no such step: %s", line)
	}
	return do(args{s.t, strings.Fields(strings.ReplaceAll(rest, ",", " ,"))})
}

// begin makes a new process, or only gives it other rules.
func (s *story) begin(denials string, others bool, rules string) {
	parsed, err := windows.Parse("rules", []byte("rules: ["+rules+"]"))
	testkit.Must(s.t, err)
	if others {
		s.rules = parsed
		return
	}
	n, err := strconv.Atoi(cmp.Or(denials, "0"))
	testkit.Must(s.t, err)
	c := streamtest.AnyRedis(s.t)
	s.processes = newProcesses(s.t, c, streamtest.Prefix(s.t), n, parsed)
	s.one, s.calls = s.start(), countScripts(c)
}

// said makes a step of what answers with one text.
func said(f func(a args) any) func(args) []string {
	return func(a args) []string { return []string{fmt.Sprint(f(a))} }
}

// does makes a step of what answers nothing.
func (s *story) does(f func(ctx context.Context, a args) error) func(args) []string {
	return func(a args) []string {
		testkit.Must(s.t, f(s.t.Context(), a))
		s.one.leases.Wait()
		return nil
	}
}

func (s *story) steps() map[string]func(args) []string {
	steps := map[string]func(args) []string{
		">": s.check, "all": s.checkAll, "each": s.checkEach,
		"used":       said(func(a args) any { return s.used(a.key()) }),
		"calls":      said(func(args) any { return s.ran }), // scripts that Redis ran for the step before
		"remembered": said(func(args) any { return s.one.denials.keys.Len() }),
		"metrics":    said(func(args) any { return s.metrics() }),
		"windows":    said(func(args) any { return s.windows() }), // of the answer to the last check
		"activity":   said(func(args) any { return fmt.Sprint("answers ", s.answers, ", units ", s.units) }),
		"leases":     said(func(args) any { return s.leasedKeys() }),
		// Whether a call of an old denial would wait for marks.
		"awaits": said(func(a args) any {
			request := counters.Request{Plan: s.rules.Match(a.key()), Key: a.key(), Cost: 1}
			reading, _ := s.one.denials.await(request, s.one.denials.now())
			return reading != nil
		}),
		// Whether the lease alone decides a check, and whether a unit can be taken from it.
		"hot": said(func(a args) any {
			_, ok := s.one.answerHot(s.t.Context(), &api.CheckRequest{Key: a.key()})
			return ok
		}),
		"take": said(func(a args) any { got, _ := s.one.leases.Find(a.key()).Take(1); return got.Allowed }),
	}
	for name, f := range s.changes() {
		steps[name] = s.does(f)
	}
	return steps
}

// errOf returns the error of a call, without its answer.
func errOf[T any](_ T, err error) error { return err }

// changes are the steps without an answer.
func (s *story) changes() map[string]func(ctx context.Context, a args) error {
	plan := func(a args) *windows.Plan { return s.rules.Match(a.key()) }
	return map[string]func(ctx context.Context, a args) error{
		"+":       func(_ context.Context, a args) error { s.advance(a.duration().Milliseconds()); return nil },
		"stopped": func(_ context.Context, a args) error { s.clock += a.duration().Milliseconds(); return nil },
		"sweep":   func(context.Context, args) error { s.sweep(); return nil },
		"close":   func(context.Context, args) error { s.one.Close(); return nil },
		"reset":   func(ctx context.Context, a args) error { return errOf(s.other.Reset(ctx, plan(a), a.key())) },
		"refund": func(ctx context.Context, a args) error {
			_, _, err := s.other.Refund(ctx, plan(a), a.key(), a.units())
			return err
		},
		"charge": func(_ context.Context, a args) error { s.charge(a.key(), a.units()); return nil },
		"forget": func(ctx context.Context, a args) error { return errOf(s.one.Reset(ctx, a.key())) },
		"giveback": func(ctx context.Context, a args) error {
			return errOf(s.one.Decide(ctx, []Request{{Key: a.key(), Plan: plan(a), Cost: a.units(), Refund: true}}))
		},
		"reserve": func(ctx context.Context, a args) error { // for the last word
			got, err := s.one.Reserve(ctx, api.ReservationRequest{TTLMs: a.duration().Milliseconds(),
				CheckRequest: api.CheckRequest{Key: a.key(), Cost: a.units()}})
			s.held = got.ID
			return err
		},
		"renew": func(ctx context.Context, a args) error { // the reservation
			return errOf(s.one.Renew(ctx, s.held, api.RenewRequest{TTLMs: a.duration().Milliseconds()}))
		},
		"lease": func(_ context.Context, a args) error { // by a client
			return errOf(s.one.Lease(api.LeaseRequest{Key: a.key(), Want: a.units()}))
		},
		"renewal":  func(_ context.Context, a args) error { s.one.leases.Find(a.key()).Start(1); return nil },
		"override": s.overridden,
		// A check by Redis whose answer comes later: at "arrives".
		"sent":     s.sent,
		"arrives":  func(context.Context, args) error { s.late(); return nil },
		"marks":    s.marksBecome,
		"renewals": func(_ context.Context, a args) error { s.lateRenewals(s.one, a.duration()); return nil },
	}
}

func (s *story) overridden(_ context.Context, a args) error {
	set := api.Override{Block: a.words[1] == "block"}
	if !set.Block && a.words[1] != "none" {
		set.Windows = []api.OverrideWindow{{Limit: a.units(), Per: "1s"}}
	}
	if len(a.words) > 2 {
		set.UntilMs = s.clock + a.duration().Milliseconds()
	}
	s.override(s.one, a.key(), set)
	return nil
}

func (s *story) sent(ctx context.Context, a args) error {
	requests := []counters.Request{{Plan: s.rules.Match(a.key()), Key: a.key(), Cost: a.units()}}
	asked := s.one.denials.now()
	verdicts, err := s.one.config.Counter.CheckMany(ctx, [][]counters.Request{requests})
	s.late = func() { s.one.denials.remember([][]counters.Request{requests}, verdicts, asked) }
	return err
}

// marksBecome makes readings of marks "fail", or "hang" until the end of the test, or last some time.
func (s *story) marksBecome(_ context.Context, a args) error {
	d := s.one.denials
	switch a.key() {
	case "fail":
		d.counter = hookedMarks{d.counter, func() error { return errNoMarks }}
	case "hang":
		holdMarks(s.t, d)
	case "reset": // another process resets a key while they are read
		d.counter = hookedMarks{d.counter, func() error {
			s.clock += a.duration().Milliseconds()
			return s.changes()["reset"](s.t.Context(), args{s.t, a.words[1:]})
		}}
	default:
		d.counter = hookedMarks{d.counter, func() error { s.clock += a.duration().Milliseconds(); return nil }}
	}
	return nil
}

func (s *story) leasedKeys() string {
	var keys []string
	for _, one := range s.one.leases.All() {
		keys = append(keys, one.Key())
	}
	slices.Sort(keys)
	return cmp.Or(strings.Join(keys, " "), "none")
}

func (s *story) metrics() string {
	var out []string
	for _, rule := range s.rules.List() {
		for _, outcome := range []string{"allowed", "denied", "cache_denied", "lease_allowed", "lease_denied",
			"canceled", "error_allow"} {
			if n := testutil.ToFloat64(s.metric.checks.WithLabelValues(rule.Name, outcome)); n > 0 {
				out = append(out, fmt.Sprintf("%s %s %v", rule.Name, outcome, n))
			}
		}
	}
	return strings.Join(out, ", ")
}

func (s *story) windows() string {
	at := func(ms int64) time.Duration { return time.Duration(s.clock+ms-beginning) * time.Millisecond }
	text := fmt.Sprintf("rule %s, cost %d", s.got.Rule, s.got.Cost)
	for _, w := range s.got.Windows {
		text += fmt.Sprintf(", %d remaining, next free at %v, empty at %v", w.Remaining, at(w.NextFreeMs),
			at(w.EmptyMs))
	}
	return text
}

var times = regexp.MustCompile(`^(\d+)x$`)

// request reads a key with what else a check has, and returns the context for it.
func (s *story) request(words []string) (context.Context, api.CheckRequest) {
	ctx, r := s.t.Context(), api.CheckRequest{Key: words[0]}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(word, 10, 64)
		switch {
		case err == nil:
			r.Cost = n
		case name == "idem", name == "first":
			ctx = api.WithIdempotency(ctx, api.Idempotency{Key: value, First: name == "first"})
		case word == "late":
			ctx = testkit.Late(ctx)
		default:
			r.Mode = api.Mode(word)
		}
	}
	return ctx, r
}

// check checks a key once or several times, and returns each answer that differs from the one before.
func (s *story) check(a args) (out []string) {
	n, pass := 1, time.Duration(0)
	m := times.FindStringSubmatch(a.key())
	if m != nil {
		n, _ = strconv.Atoi(m[1])
		a.words = a.words[1:]
	}
	if strings.HasPrefix(a.words[len(a.words)-1], "+") {
		pass, a.words = a.duration(), a.words[:len(a.words)-1]
	}
	before, equal := "", 0
	for i := range n {
		ctx, r := s.request(a.words)
		r.Key = strings.ReplaceAll(r.Key, "#", strconv.Itoa(i))
		got, err := s.one.Check(ctx, r)
		s.one.leases.Wait()
		s.got = got
		text := s.told(got, err, m != nil)
		if equal++; text != before {
			before, equal = text, 1
			out = append(out, "")
		}
		out[len(out)-1] = text
		if m != nil {
			out[len(out)-1] = fmt.Sprintf("%dx %s", equal, text)
		}
		s.advance(pass.Milliseconds())
	}
	return out
}

// checkAll makes one call of several keys.
func (s *story) checkAll(a args) (out []string) {
	var asks []Request
	for _, words := range split(a.words) {
		_, r := s.request(words)
		cost := cmp.Or(r.Cost, 1)
		asks = append(asks, Request{Key: r.Key, Plan: s.rules.Match(r.Key), Cost: max(cost, -cost), Refund: cost < 0})
	}
	all, err := s.one.Decide(s.t.Context(), asks)
	testkit.Must(s.t, err)
	for _, got := range all.Checks {
		out = append(out, got.Key+": "+s.told(got, nil, false))
	}
	return append(out, fmt.Sprintf("allowed: %t, a wait of %d ms", all.Allowed, all.RetryAfterMs))
}

func (s *story) checkEach(a args) (out []string) {
	ctx := s.t.Context()
	var asks []api.CheckRequest
	for _, words := range split(a.words) {
		with, r := s.request(words)
		ctx, asks = with, append(asks, r)
	}
	for _, got := range s.one.CheckEach(ctx, asks) {
		out = append(out, got.Key+": "+s.told(got.CheckAnswer, got.Err, false))
	}
	return out
}

// split splits words at commas.
func split(words []string) (list [][]string) {
	for text := range strings.SplitSeq(strings.Join(words, " "), ",") {
		list = append(list, strings.Fields(text))
	}
	return list
}

// told returns an answer as text; of many, without what changes with each.
func (s *story) told(a api.CheckAnswer, err error, many bool) string {
	if err != nil {
		return "error: " + err.Error()
	}
	text := outcomeOf(a.Allowed) + " by " + string(a.Source)
	if len(a.Windows) > 0 && !many {
		text += fmt.Sprintf(", %d of %d", a.Windows[0].Used, a.Windows[0].Limit)
	} else if len(a.Windows) > 0 {
		text += fmt.Sprintf(", limit %d", a.Windows[0].Limit)
	}
	if a.Charged {
		text += ", charged"
	}
	if a.Replayed {
		text += ", replayed"
	}
	if a.RetryAfterMs > 0 {
		text += ", free at " + (time.Duration(s.clock+a.RetryAfterMs-beginning) * time.Millisecond).String()
	}
	for _, shadow := range a.Shadow {
		text += ", " + outcomeOf(shadow.Allowed) + " by the shadow rule " + shadow.Rule
	}
	if a.Note != "" {
		text += ": " + a.Note
	}
	return text
}

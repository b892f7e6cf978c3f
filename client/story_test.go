package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// story is a client, the server that it asks, and the callers, in a bubble whose time passes when all of them wait.
//
// Each line is a step. `client SETTING=VALUE …` begins with another client and its server. `server ANSWER; …` gives
// the next answers (see storyServer), and `sleep 9ms` lets time pass. The other steps are calls (see call). "N times"
// repeats a call. "a: " makes the caller a do it, while the story goes on. `leave a` ends the context of that caller.
// The results follow as "> ".
type story struct {
	t       *testing.T
	began   time.Time
	server  *storyServer
	client  *client.Client
	callers map[string]*caller
	log     printed
}

var policies = map[string]client.Policy{"allow": client.Allow, "deny": client.Deny, "local": client.Local}

type caller struct {
	ctx   context.Context
	leave context.CancelFunc
	slot  *client.Slot // nil until it acquires one
	lost  string       // how the context of the slot has ended; empty: it has not, or that was printed
}

func TestStories(t *testing.T) {
	testkit.Stories(t, func(t *testing.T, _, _ string, steps []string) (out []string) {
		synctest.Test(t, func(t *testing.T) {
			s := newStory(t)
			out = testkit.Steps(steps, "> ", func(step string) []string {
				s.step(strings.Fields(step))
				return s.results()
			})
			s.end()
		})
		return out
	})
}

func newStory(t *testing.T, settings ...string) *story {
	s := &story{t: t, callers: map[string]*caller{}}
	s.newClient(settings)
	return s
}

// results waits until nothing more happens at this moment, and returns what has happened.
func (s *story) results() []string {
	synctest.Wait()
	for _, name := range slices.Sorted(maps.Keys(s.callers)) {
		if c := s.callers[name]; c.lost != "" {
			s.log.add("%s: the context of its slot has ended%s", name, c.lost)
			c.lost = ""
		}
	}
	return s.log.take()
}

func (s *story) step(words []string) {
	switch what, rest := words[0], words[1:]; what {
	case "client":
		s.end()
		s.newClient(rest)
	case "server":
		s.server.answers = strings.Split(strings.Join(rest, " "), "; ")
	case "sleep":
		time.Sleep(duration(s.t, rest[0]))
	case "leave":
		s.caller(rest[0]).leave()
	case "released":
		s.server.released[rest[0]] <- struct{}{}
	default:
		if name, ok := strings.CutSuffix(what, ":"); ok {
			c := s.caller(name)
			go func() { s.log.add("%s: %s, at %s", name, s.call(c, rest), s.now(time.Second)) }()
			return
		}
		times := 1
		if len(rest) > 0 && rest[0] == "times" {
			times, _ = strconv.Atoi(what)
			words = rest[1:]
		}
		for range times {
			s.log.add("%s", s.call(s.caller(""), words))
		}
	}
}

// now is the time since the client was made.
func (s *story) now(to time.Duration) time.Duration { return time.Since(s.began).Truncate(to) }

func (s *story) caller(name string) *caller {
	c := s.callers[name]
	if c == nil {
		c = &caller{}
		c.ctx, c.leave = context.WithCancel(s.t.Context())
		s.callers[name] = c
	}
	return c
}

// end ends what the callers still do.
func (s *story) end() {
	s.server.answers = []string{"allows"}
	for _, name := range slices.Sorted(maps.Keys(s.callers)) {
		c := s.callers[name]
		if c.leave(); c.slot != nil {
			_ = c.slot.Cancel(s.t.Context())
		}
	}
	s.results()
	if n := len(s.server.released); n > 0 {
		s.t.Errorf("nobody waits, and %d listen still for releases", n)
	}
	clear(s.callers)
}

// newClient makes a client: timeout, retries, policy, policies (of rules), instances, denials, unknown, unmatched,
// max-wait, known, local, no-keys, releases, rule-of; plain: its server takes no idempotency keys.
func (s *story) newClient(settings []string) {
	s.server = &storyServer{story: s, answers: []string{"allows"}, released: map[string]chan struct{}{}}
	s.began = time.Now()
	c, server := client.Config{OnFallback: s.server.onFallback}, client.Checker(s.server)
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		number, _ := strconv.Atoi(value)
		switch name {
		case "timeout":
			c.Timeout = duration(s.t, value)
		case "max-wait":
			c.MaxWait = duration(s.t, value)
		case "policy":
			c.Policy = policies[value]
		case "policies":
			c.RulePolicies = policies
		case "unknown":
			c.UnknownKeys = policies[value]
		case "unmatched":
			c.UnmatchedKeys = policies[value]
		case "no-keys":
			c.NoIdempotency = true
		case "plain":
			server = struct{ client.Checker }{s.server}
		case "releases":
			c.Releases = s.server
		case "rule-of":
			c.RuleOf = func(string) (client.Rule, bool) {
				limits := []client.Limit{{Units: int64(number), Per: 10 * time.Second}}
				return client.Rule{Name: "mine", Limits: limits}, true
			}
		default:
			*map[string]*int{"retries": &c.Retries, "instances": &c.Instances, "denials": &c.Denials,
				"known": &c.KnownKeys, "local": &c.LocalKeys}[name] = number
		}
	}
	s.client = newClient(s.t, server, c)
}

// call makes a call: check, all, each, peek, reserve, commit, renew, cancel, acquire, wait; for a caller with a slot
// release, commit and cancel are of the slot. Then come keys, each with a cost or a mode, and options. It returns the
// answer, and what the server was asked.
func (s *story) call(c *caller, words []string) string {
	ctx, n := c.ctx, s.client
	var reqs []api.CheckRequest
	for _, word := range words[1:] {
		cost, err := strconv.ParseInt(word, 10, 64)
		switch name, value, option := strings.Cut(word, "="); {
		case option && name == "as": // another policy
			n = n.With(policies[value])
		case option:
			within, cancel := s.option(ctx, name, value)
			defer cancel()
			ctx = within
		case err == nil && len(reqs) == 0: // of a slot
			reqs = append(reqs, api.CheckRequest{Cost: cost})
		case err == nil:
			reqs[len(reqs)-1].Cost = cost
		case api.Mode(word).Validate() == nil:
			reqs[len(reqs)-1].Mode = api.Mode(word)
		default:
			reqs = append(reqs, api.CheckRequest{Key: strings.Trim(word, `"`)})
		}
	}
	return s.answerTo(ctx, c, n, words[0], reqs) + s.server.asked()
}

// option returns the context of a call with an idempotency key (key=), with one that another client has made (outer=),
// or with a time that the caller has (within=). If that is 0s, its timer does not fire.
func (s *story) option(ctx context.Context, name, value string) (context.Context, context.CancelFunc) {
	switch {
	case name == "within" && value == "0s":
		return testkit.Late(ctx), func() {}
	case name == "within":
		return context.WithTimeout(ctx, duration(s.t, value))
	}
	return api.WithIdempotency(ctx, api.Idempotency{Key: value, First: name == "outer"}), func() {}
}

func (s *story) answerTo(ctx context.Context, c *caller, n *client.Client, kind string,
	reqs []api.CheckRequest) (text string) {
	var err error
	switch kind {
	case "check":
		var a api.CheckAnswer
		a, err = n.Check(ctx, reqs[0])
		return answerText(a, err)
	case "all":
		all, err := n.CheckAll(ctx, reqs)
		return fmt.Sprintf("%s retry %d%s", answersText(all.Checks), all.RetryAfterMs, errorText(err))
	case "each":
		list, err := n.CheckEach(ctx, reqs)
		for _, e := range list {
			text += "[" + answerText(e.CheckAnswer, e.Err) + "] "
		}
		return strings.TrimSpace(text + errorText(err))
	case "acquire":
		if c.slot, err = n.Acquire(ctx, reqs[0].Key, reqs[0].Cost); err == nil {
			slot := c.slot.Context()
			context.AfterFunc(slot, func() {
				c.lost = fmt.Sprintf("%s, at %s", errorText(context.Cause(slot)), s.now(time.Millisecond))
			})
		}
	case "wait":
		if err = n.Wait(ctx, reqs[0].Key, reqs[0].Cost); err != nil {
			text = err.Error()
		}
	default:
		if c.slot == nil {
			err = ask(ctx, n, kind, reqs...)
			break
		}
		err = c.settle(s.t.Context(), kind, reqs)
	}
	if err == nil && text == "" {
		text = "done"
	}
	return strings.TrimSpace(text + errorText(err))
}

// settle gives the slot of the caller back.
func (c *caller) settle(ctx context.Context, how string, reqs []api.CheckRequest) error {
	switch how {
	case "commit":
		return c.slot.Commit(ctx, reqs[0].Cost)
	case "cancel":
		return c.slot.Cancel(ctx)
	}
	return c.slot.Release(ctx)
}

// answerText has the key, the decision and its source, each window with its use and its limit, and the wait.
func answerText(a api.CheckAnswer, err error) string {
	text := fmt.Sprintf("%s x%d %s by %s", a.Key, a.Cost, map[bool]string{true: "allowed", false: "denied"}[a.Allowed],
		a.Source)
	if a.Key == "" {
		return "no answer" + errorText(err)
	}
	for _, w := range a.Windows {
		text += fmt.Sprintf(" %d/%d", w.Used, w.Limit)
	}
	if a.Charged {
		text += " charged"
	}
	if a.RetryAfterMs != 0 {
		text += fmt.Sprintf(" retry %dms", a.RetryAfterMs)
	}
	if a.Note != "" {
		text += " noted"
	}
	return text + errorText(err)
}

func answersText(list []api.CheckAnswer) (text string) {
	for _, a := range list {
		text += "[" + answerText(a, nil) + "] "
	}
	return strings.TrimSpace(text)
}

// errorText has the names of all that an error is, and the answer in it.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	var names []string
	if name := outcome(err); name != "" {
		names = append(names, name)
	}
	for _, e := range []error{api.ErrUnavailable, context.Canceled, context.DeadlineExceeded, client.ErrOverLimit,
		client.ErrSlotLost} {
		if name := api.NameOf(e); errors.Is(err, e) && (name == "" || name != api.NameOf(err)) {
			names = append(names, e.Error())
		}
	}
	if over, ok := errors.AsType[*client.OverLimitError](err); ok {
		names = append(names, "with the answer "+answerText(over.Answer, nil))
	}
	return " (" + strings.Join(names, ", ") + ")"
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	testkit.Must(t, err)
	return d
}

// A server that answers with old denials alone is asked with pauses, and no longer than MaxWait. The last check may end
// a millisecond later.
func TestWaitWhileAllAnswersAreOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStory(t, "max-wait=3s")
		s.server.answers = []string{"denies -1ms replayed in 1ms"}
		err := s.client.Wait(t.Context(), "user:1", 1)
		took := s.now(time.Microsecond)
		if !errors.Is(err, client.ErrOverLimit) || took > 3*time.Second+time.Millisecond || s.server.calls > 100 {
			t.Errorf("%v after %d checks in %s, want ErrOverLimit after at most 100 in 3s", err, s.server.calls, took)
		}
	})
}

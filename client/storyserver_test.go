package client_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// storyServer is the server of a story. Its answers:
//
//	allows 10/1m 2/slot    all keys; the windows of the answer, of which one is in flight
//	denies 60s 10/1m       and charges with "charging"; "replayed", "cache" and "operator" are of the answer too;
//	                       with "unmatched" no rule matches the key any more
//	away, lost, silent     not sent, no answer after it was sent, no answer until the caller gives up
//	error NAME             as problems name it
//	foreign                an answer of something that is no such server
//	hangs-up               allows, and all callers leave before they have the answer
//
// "in 5ms" is the time of an answer; "for-all" makes CheckEach fail as a whole. The next call gets the next answer, and
// the last one stays. A rule has the name of the key up to the colon; nobody: matches no rule, trial: a shadow rule.
type storyServer struct {
	story    *story
	mu       sync.Mutex
	answers  []string
	calls    int
	again    int      // of them, those that may repeat an earlier one
	keys     []string // idempotency keys of the caller
	fellBack string   // what the client said of its last fallback
	released map[string]chan struct{}
}

var errGone = errors.New("it is gone")

// asked returns what the server was asked since the last time, if that is not one call.
func (s *storyServer) asked() (text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls != 1 {
		text += fmt.Sprint("; asked ", s.calls)
	}
	if s.again > 0 {
		text += fmt.Sprint("; again ", s.again)
	}
	if len(s.keys) > 0 {
		text += "; keys " + strings.Join(s.keys, " ")
	}
	text += s.fellBack
	s.calls, s.again, s.keys, s.fellBack = 0, 0, nil, ""
	return text
}

func (s *storyServer) onFallback(p client.Policy, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fellBack = fmt.Sprint("; fell back to ", p); why == nil {
		s.fellBack += " for no reason"
	}
}

// next records a call and returns the words of its answer.
func (s *storyServer) next(ctx context.Context) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if api.MayRepeat(ctx) {
		s.again++
	}
	if key := api.IdempotencyKey(ctx).Key; strings.HasPrefix(key, "mine.") {
		s.keys = append(s.keys, key)
	}
	words := strings.Fields(s.answers[0])
	s.answers = s.answers[min(1, len(s.answers)-1):]
	return words
}

var errForAll = errors.New("for all")

func (s *storyServer) CheckAll(ctx context.Context, reqs []api.CheckRequest) (all api.ChecksAnswer, err error) {
	words := s.next(ctx)
	if i := slices.Index(words, "in"); i > 0 {
		select {
		case <-time.After(duration(s.story.t, words[i+1])):
		case <-ctx.Done():
			return all, transport.Lost(ctx.Err())
		}
	}
	switch words[0] {
	case "away":
		err = transport.NotSent(errGone)
	case "lost":
		err = transport.Lost(errGone)
	case "silent":
		<-ctx.Done()
		err = transport.Lost(ctx.Err())
	case "foreign":
		err = fmt.Errorf("%w: %w", api.ErrNoAnswer, errGone)
	case "error":
		err = fmt.Errorf("%w: so it is", api.ErrorNamed(api.ProblemPrefix+words[1]))
	case "hangs-up":
		for _, c := range s.story.callers {
			c.leave()
		}
	}
	if err != nil && slices.Contains(words, "for-all") {
		err = fmt.Errorf("%w: %w", errForAll, err)
	}
	if err != nil {
		return all, err
	}
	all = api.ChecksAnswer{Allowed: words[0] != "denies", Atomic: true}
	for _, r := range reqs {
		all.Checks = append(all.Checks, answerOf(words, r))
	}
	return all, nil
}

func answerOf(words []string, r api.CheckRequest) api.CheckAnswer {
	rule, _, _ := strings.Cut(r.Key, ":")
	a := api.CheckAnswer{Allowed: words[0] != "denies", Rule: rule, Key: r.Key, Cost: max(r.Cost, 1),
		Source: api.SourceRedis}
	switch rule {
	case "nobody":
		a.Rule = ""
	case "trial":
		a.Rule, a.Shadow = "", make([]api.ShadowAnswer, 1)
	}
	for _, word := range words[1:] {
		limit, per, window := strings.Cut(word, "/")
		n, _ := strconv.ParseInt(limit, 10, 64)
		d, err := time.ParseDuration(cmp.Or(per, word))
		switch {
		case window && per == "slot":
			a.Windows = append(a.Windows, api.WindowState{Limit: n, WindowKind: api.WindowKind{InFlight: true}})
		case window:
			a.Windows = append(a.Windows, api.WindowState{Limit: n, WindowMs: d.Milliseconds()})
		case word == "charging":
			a.Charged = true
		case word == "unmatched":
			a.Rule = ""
		case word == "replayed":
			a.Replayed = true
		case word == "cache":
			a.Source = api.SourceCache
		case word == "operator":
			a.Override = "windows"
		case err == nil && words[0] == "denies" && a.RetryAfterMs == 0:
			a.RetryAfterMs = d.Milliseconds()
		}
	}
	return a
}

// TakesIdempotency implements client.Idempotent.
func (s *storyServer) TakesIdempotency() bool { return true }

func (s *storyServer) Check(ctx context.Context, req api.CheckRequest) (a api.CheckAnswer, err error) {
	all, err := s.CheckAll(ctx, []api.CheckRequest{req})
	if err == nil {
		a = all.Checks[0]
	}
	return a, err
}

func (s *storyServer) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	list := make([]api.Each, len(reqs))
	for i, r := range reqs {
		list[i].CheckAnswer, list[i].Err = s.Check(ctx, r)
		if errors.Is(list[i].Err, errForAll) {
			return nil, list[i].Err
		}
	}
	return list, nil
}

func (s *storyServer) Peek(ctx context.Context, key string) (api.KeyState, error) {
	_, err := s.Check(ctx, api.CheckRequest{Key: key})
	return api.KeyState{Key: key}, err
}

// Reserve makes reservations of 30s.
func (s *storyServer) Reserve(ctx context.Context, req api.ReservationRequest) (a api.ReservationOfAll, err error) {
	if ctx.Err() != nil {
		return a, transport.Lost(ctx.Err())
	}
	s.note("reserve")
	if a.ChecksAnswer, err = s.CheckAll(ctx, []api.CheckRequest{req.CheckRequest}); a.Allowed {
		a.Reserved = api.Reserved{ID: "0a-1", TTLMs: 30_000}
	}
	return a, err
}

func (s *storyServer) note(format string, values ...any) {
	s.story.log.add("the server gets %s, at %s", fmt.Sprintf(format, values...), s.story.now(time.Millisecond))
}

// settle answers about the key user:1.
func (s *storyServer) settle(ctx context.Context, id string) (api.Settlement, error) {
	state, err := s.Peek(ctx, "user:1")
	return api.Settlement{ID: id, State: api.ReservationCommitted, Keys: []api.KeyState{state}}, err
}

func (s *storyServer) Commit(ctx context.Context, id string, req api.CommitRequest) (api.Settlement, error) {
	if s.note("commit"); req.Cost != nil {
		s.note("its cost %d", *req.Cost)
	}
	return s.settle(ctx, id)
}

func (s *storyServer) Cancel(ctx context.Context, id string) (api.Settlement, error) {
	s.note("cancel")
	return s.settle(ctx, id)
}

func (s *storyServer) Renew(ctx context.Context, id string, _ api.RenewRequest) (api.Settlement, error) {
	s.note("renew")
	return s.settle(ctx, id)
}

// Released implements client.Releases. A release of a story ends the waits of its key.
func (s *storyServer) Released(key string) (<-chan struct{}, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released[key] = make(chan struct{}, 1)
	return s.released[key], func() { s.mu.Lock(); defer s.mu.Unlock(); delete(s.released, key) }
}

// printed has the lines that a story has said. Equal lines that follow each other are one, with their number.
type printed struct {
	mu    sync.Mutex
	lines []string
	times []int
}

func (p *printed) add(format string, values ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf(format, values...)
	if last := len(p.lines) - 1; last >= 0 && p.lines[last] == line {
		p.times[last]++
		return
	}
	p.lines, p.times = append(p.lines, line), append(p.times, 1)
}

func (p *printed) take() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, line := range p.lines {
		if p.times[i] > 1 {
			line = fmt.Sprintf("%d times %s", p.times[i], line)
		}
		out = append(out, line)
	}
	p.lines, p.times = nil, nil
	return out
}

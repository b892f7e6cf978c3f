package httpmw

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/gate"
)

// Config of the middleware. Key and one of Guard, Checker and Slots are required.
type Config struct {
	// Guard is asked first; it is a guard.Guard.
	Guard gate.Guard
	// Checker decides and charges; it is a client.Client, whose policy decides if nobody answers. A transport alone
	// has no policy: then the answer is 503.
	Checker gate.Checker
	// Slots, in place of Checker, holds a slot of an in_flight window while the handler runs, and then charges what
	// was reserved, also if the handler panics; it is a client.Client. The context of the request ends when the slot
	// is lost (client.ErrSlotLost is its cause). If nobody answers, the answer is 503, because no policy grants a
	// slot.
	Slots gate.Slots
	// Key returns the key of a request, and false if it has none. Then the request passes, unless RequireKey is set.
	// See Header, ClientAddress, PathPrefix and First.
	Key KeyFunc
	// RequireKey refuses a request without a key with 400; default: it passes. client.Config.UnmatchedKeys decides
	// about a key that no rule matches; default: it passes too.
	RequireKey bool
	// Cost of a request; default 1. Below 1, only the guard is asked.
	Cost func(*http.Request) int64
	// Skip lets requests pass for which any of these returns true. See Paths, Methods and Addresses.
	Skip []func(*http.Request) bool
	// Denied writes the answer to a request over its limit, after the headers are
	// set; default 429 with application/problem+json, which shows no key.
	Denied func(http.ResponseWriter, *http.Request, api.CheckAnswer)
	// OnError is called with each error, also if the policy let the request pass. May be nil.
	OnError func(*http.Request, error)
	// Now replaces the clock in tests, in ms since 1970.
	Now func() int64
}

// New makes the middleware.
func New(c Config) (func(http.Handler) http.Handler, error) {
	if c.Key == nil || c.Guard == nil && c.Checker == nil && c.Slots == nil {
		return nil, errors.New("httpmw: Key, and Guard, Checker or Slots, are required")
	}
	if c.Checker != nil && c.Slots != nil {
		return nil, errors.New("httpmw: give Checker or Slots, not both")
	}
	if c.Cost == nil {
		c.Cost = func(*http.Request) int64 { return 1 }
	}
	if c.Denied == nil {
		c.Denied = denied
	}
	if c.OnError == nil {
		c.OnError = func(*http.Request, error) {}
	}
	g := gate.Gate{Guard: c.Guard, Checker: c.Checker, Slots: c.Slots, RequireKey: c.RequireKey, Now: c.Now}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.serve(w, r, g, next) })
	}, nil
}

// serve calls next if the request passes, with the context of its slot if it has one. Otherwise it answers the
// request.
func (c *Config) serve(w http.ResponseWriter, r *http.Request, g gate.Gate, next http.Handler) {
	for _, skip := range c.Skip {
		if skip(r) {
			next.ServeHTTP(w, r)
			return
		}
	}
	key, ok := c.Key(r)
	v := g.WithoutKey()
	if ok {
		v = g.Ask(r.Context(), key, c.Cost(r))
	}
	if v.Err != nil {
		c.OnError(r, v.Err)
	}
	maps.Copy(w.Header(), v.Header())
	switch v.Outcome {
	case gate.Pass:
		if v.Slot != nil {
			defer func(r *http.Request) { // even if the caller is gone
				if err := v.Slot.Release(context.WithoutCancel(r.Context())); err != nil {
					c.OnError(r, err)
				}
			}(r)
			r = r.WithContext(v.Slot.Context())
		}
		next.ServeHTTP(w, r)
	case gate.Over:
		c.Denied(w, r, v.Answer)
	case gate.Unavailable, gate.Gone:
		w.Header().Set("Retry-After", "1") // seconds; it is not known how long it will take
		fallthrough
	default:
		writeProblem(w, body{Problem: problems[v.Outcome]})
	}
}

// body is a problem, and for a denial how long to wait.
type body struct {
	api.Problem
	RetryAfterMs int64 `json:"retry_after_ms,omitempty"`
}

func denied(w http.ResponseWriter, _ *http.Request, a api.CheckAnswer) {
	writeProblem(w, body{problem(http.StatusTooManyRequests, "over-limit", "Over the limit",
		gate.OverText(a.RetryAfterMs)), a.RetryAfterMs})
}

func problem(status int, name, title, detail string) api.Problem {
	return api.Problem{Type: api.ProblemPrefix + name, Title: title, Status: status, Detail: detail}
}

var unavailable = problem(http.StatusServiceUnavailable, "unavailable", "The limit cannot be checked",
	"it is not known whether this is within its limit")

// problems: outcome → the answer. None shows the key, because the caller must not see it.
var problems = map[gate.Outcome]api.Problem{
	gate.NoKey:   problem(http.StatusBadRequest, "bad-key", "The request has no key", ""),
	gate.BadKey:  problem(http.StatusBadRequest, "bad-key", "The key of the request cannot be counted", ""),
	gate.BadCost: problem(http.StatusBadRequest, "bad-count", "The cost of the request is out of bounds", ""),
	gate.AboveLimit: problem(http.StatusBadRequest, "cost-exceeds-limit",
		"The cost is above the limit and can never be admitted", ""),
	gate.Refused:     problem(http.StatusInternalServerError, "internal", "This service cannot check its limit", ""),
	gate.Unavailable: unavailable, gate.Gone: unavailable,
}

func writeProblem(w http.ResponseWriter, b body) {
	text, _ := json.Marshal(b) // strings and numbers alone
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(b.Status)
	_, _ = w.Write(append(text, '\n')) // the caller is gone if this fails
}

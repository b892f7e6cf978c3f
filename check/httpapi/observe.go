package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/activity"
)

// historyPath is what stands before a key or a pattern in a path.
const historyPath = "/v1/history/"

// observeRoutes are those of who wants to know what happens.
func (s *Server) observeRoutes() []Route {
	return []Route{
		{Method: "GET", Path: historyPath, Scope: access.ScopeRead, Serve: http.HandlerFunc(s.getHistory)},
		{Method: "GET", Path: "/v1/top", Scope: access.ScopeRead, Serve: http.HandlerFunc(s.getTop)},
	}
}

func (s *Server) getHistory(w http.ResponseWriter, r *http.Request) {
	req := check.HistoryRequest{Changes: access.IsAdmin(r.Context())}
	var err error
	req.Key, req.Pattern, err = targetOf(r, historyPath)
	q := r.URL.Query()
	if err == nil {
		err = onlyParameters(q, "limit", "before")
	}
	if err == nil {
		req.N, err = limitOf(q, 100, 1000)
	}
	req.Before = q.Get("before")
	var out api.History
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
		defer cancel()
		out, err = s.checks.History(ctx, req)
	}
	respond(w, r, out, err)
}

// topKeys is how many keys of a rule are listed, unless the caller says so, and at most.
const (
	topKeys       = 10
	topKeysAtMost = 50
)

func (s *Server) getTop(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	err := onlyParameters(q, "rule", "limit")
	n := 0
	if err == nil {
		n, err = limitOf(q, topKeys, topKeysAtMost)
	}
	if err == nil && s.config.Activity == nil {
		err = fmt.Errorf("%w: this server records no activity", api.ErrBadRequest)
	}
	var all activity.Activity
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
		defer cancel()
		if all, err = s.config.Activity(ctx); err != nil {
			err = fmt.Errorf("%w: %w", api.ErrUnavailable, err)
		}
	}
	rules := all.Rules()
	if q.Has("rule") && err == nil {
		if rules = []string{q.Get("rule")}; !slices.Contains(all.Rules(), rules[0]) && !s.checks.HasRule(rules[0]) {
			err = fmt.Errorf("%w: rule=%s, expected the name of a rule", api.ErrBadRequest, api.Shorten(rules[0]))
		}
	}
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	out := api.Top{Rules: []api.TopKeys{}}
	for _, rule := range rules {
		out.Rules = append(out.Rules, all.Top(rule, n))
	}
	writeJSON(w, "application/json", http.StatusOK, out)
}

package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
)

func (s *Server) getHistory(w http.ResponseWriter, r *http.Request) error {
	key, pattern, err := api.ParseTarget(rest(r, historyPath))
	if err != nil {
		return err
	}
	q := r.URL.Query()
	n, err := numberOf(q, "limit", 100, 1000)
	if err != nil {
		return err
	}
	req := check.HistoryRequest{Key: key, Pattern: pattern, N: n, Before: q.Get("before"),
		Changes: access.IsAdmin(r.Context())}
	return s.list(w, r, func(ctx context.Context) (any, error) { return s.checks.History(ctx, req) })
}

// topKeys is how many keys of a rule are listed, unless the caller gives a number; topKeysAtMost is the largest
// number.
const (
	topKeys       = 10
	topKeysAtMost = 50
)

func (s *Server) getTop(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	n, err := numberOf(q, "limit", topKeys, topKeysAtMost)
	if err != nil {
		return err
	}
	if s.config.Activity == nil {
		return fmt.Errorf("%w: this server records no activity", api.ErrBadRequest)
	}
	return s.list(w, r, func(ctx context.Context) (any, error) { return s.top(ctx, q, n) })
}

func (s *Server) top(ctx context.Context, q url.Values, n int) (out api.Top, err error) {
	all, err := s.config.Activity(ctx)
	if err != nil {
		return out, fmt.Errorf("%w: %w", api.ErrUnavailable, err)
	}
	rules := all.Rules()
	if q.Has("rule") {
		rule := q.Get("rule")
		if !slices.Contains(rules, rule) && !s.checks.HasRule(rule) {
			return out, errNoRule(rule)
		}
		rules = []string{rule}
	}
	out.Rules = []api.TopKeys{}
	for _, rule := range rules {
		out.Rules = append(out.Rules, all.Top(rule, n))
	}
	return out, nil
}

func errNoRule(name string) error {
	return fmt.Errorf("%w: rule=%s, expected the name of a rule", api.ErrBadRequest, api.Shorten(name))
}

package httpapi

import (
	"context"
	"fmt"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
)

// valuesAtMost is how many values of a field are listed at most.
const valuesAtMost = 1000

// getKey answers with the state of a key, and with the values that the key touched. These can be personal data.
func (s *Server) getKey(w http.ResponseWriter, r *http.Request) error {
	values, err := numberOf(r.URL.Query(), "values", 0, valuesAtMost)
	if err != nil {
		return err
	}
	if values > 0 && !access.IsAdmin(r.Context()) {
		err := fmt.Errorf("%w: the values of a key need the scope %s", api.ErrForbidden, access.ScopeAdmin)
		access.Challenge(w.Header(), r.Header, err, access.ScopeAdmin)
		return err
	}
	state, err := s.checks.PeekValues(r.Context(), rest(r, keysPath), values)
	hideCaller(r.Context(), state.SetByOperator)
	return respond(w, state, err)
}

func (s *Server) deleteKey(w http.ResponseWriter, r *http.Request) error {
	key := rest(r, keysPath)
	had, err := s.checks.Reset(r.Context(), key)
	return respond(w, resetAnswer{key, had}, err)
}

// The throttled keys of a page if the request has no limit, and the largest limit.
const (
	listed       = 1000
	listedAtMost = 10_000
)

func (s *Server) getThrottled(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	n, err := numberOf(q, "limit", listed, listedAtMost)
	if err != nil {
		return err
	}
	shadow, err := boolOf(q, "shadow")
	if err != nil {
		return err
	}
	rule := q.Get("rule")
	return s.list(w, r, func(ctx context.Context) (any, error) {
		page, next, err := s.checks.Throttled(ctx, n, q.Get("after"), func(t api.Throttled) bool {
			return (!q.Has("rule") || t.Rule == rule) && (!q.Has("shadow") || t.Shadow == shadow)
		})
		if err == nil && len(page) == 0 && q.Has("rule") && !s.throttles(rule) {
			err = errNoRule(rule)
		}
		return throttledAnswer{Throttled: append([]api.Throttled{}, page...), Next: next, Truncated: next != ""}, err
	})
}

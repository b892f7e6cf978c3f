package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
)

// keyOf is the key in the path.
func keyOf(r *http.Request) (string, error) {
	key, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), keysPath))
	if err != nil {
		return "", fmt.Errorf("%w: %w", api.ErrBadKey, err)
	}
	return key, nil
}

func (s *Server) getKey(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	if r.URL.Query().Has("values") {
		s.getValues(w, r, key)
		return
	}
	state, err := s.checks.Peek(r.Context(), key)
	respond(w, r, state, err)
}

// valuesAtMost is how many values of a field are listed.
const valuesAtMost = 1000

// getValues adds the values that a key touched to its state. They can be personal data.
func (s *Server) getValues(w http.ResponseWriter, r *http.Request, key string) {
	n, err := numberOf(r.URL.Query(), "values", valuesAtMost)
	if err == nil && !access.IsAdmin(r.Context()) {
		err = fmt.Errorf("%w: the values of a key need the scope %s", api.ErrForbidden, access.ScopeAdmin)
		access.Challenge(w.Header(), r.Header, err, access.ScopeAdmin)
	}
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	state, err := s.checks.PeekValues(r.Context(), key, n)
	respond(w, r, state, err)
}

func (s *Server) deleteKey(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	had, err := s.checks.Reset(r.Context(), key)
	respond(w, r, resetAnswer{key, had}, err)
}

func (s *Server) getThrottled(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	err := onlyParameters(q, "limit", "after", "rule", "shadow")
	n := 0
	if err == nil {
		n, err = limitOf(q, listed, listedAtMost)
	}
	shadow := false
	if err == nil && q.Has("shadow") {
		shadow, err = boolOf(q, "shadow")
	}
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	s.list(w, r, func(ctx context.Context) (any, error) {
		page, next, err := s.checks.Throttled(ctx, n, q.Get("after"), func(t api.Throttled) bool {
			return (!q.Has("rule") || t.Rule == q.Get("rule")) && (!q.Has("shadow") || t.Shadow == shadow)
		})
		return throttledAnswer{Throttled: append([]api.Throttled{}, page...), Next: next, Truncated: next != ""}, err
	})
}

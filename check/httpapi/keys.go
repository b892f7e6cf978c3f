package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/streamcounter/streamcounter/api"
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
	state, err := s.checks.Peek(r.Context(), key)
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

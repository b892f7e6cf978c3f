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
	err := onlyParameters(q, "limit", "after")
	n := 0
	if err == nil {
		n, err = limitOf(q, listed, listedAtMost)
	}
	list := throttledAnswer{Throttled: []api.Throttled{}}
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
		defer cancel()
		var page []api.Throttled
		page, list.Next, err = s.checks.Throttled(ctx, n, q.Get("after"))
		list.Throttled = append(list.Throttled, page...)
		list.Truncated = list.Next != ""
	}
	respond(w, r, list, err)
}

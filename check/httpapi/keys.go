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

// keyOf returns the key in the path.
func keyOf(r *http.Request) (string, error) {
	key, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), keysPath))
	if err != nil {
		return "", fmt.Errorf("%w: %w", api.ErrBadKey, err)
	}
	return key, nil
}

func (s *Server) getKey(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	if r.URL.Query().Has("values") {
		return s.getValues(w, r, key)
	}
	state, err := s.checks.Peek(r.Context(), key)
	return respond(w, state, err)
}

// valuesAtMost is how many values of a field are listed at most.
const valuesAtMost = 1000

// getValues answers with the state of a key and the values that the key touched. The values can be personal data.
func (s *Server) getValues(w http.ResponseWriter, r *http.Request, key string) error {
	n, err := numberOf(r.URL.Query(), "values", valuesAtMost)
	if err != nil {
		return err
	}
	if !access.IsAdmin(r.Context()) {
		err := fmt.Errorf("%w: the values of a key need the scope %s", api.ErrForbidden, access.ScopeAdmin)
		access.Challenge(w.Header(), r.Header, err, access.ScopeAdmin)
		return err
	}
	state, err := s.checks.PeekValues(r.Context(), key, n)
	return respond(w, state, err)
}

func (s *Server) deleteKey(w http.ResponseWriter, r *http.Request) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	had, err := s.checks.Reset(r.Context(), key)
	return respond(w, resetAnswer{key, had}, err)
}

func (s *Server) getThrottled(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	n, err := pageOf(q, listed, listedAtMost)
	if err != nil {
		return err
	}
	shadow := false
	if q.Has("shadow") {
		if shadow, err = boolOf(q, "shadow"); err != nil {
			return err
		}
	}
	return s.list(w, r, func(ctx context.Context) (any, error) {
		page, next, err := s.checks.Throttled(ctx, n, q.Get("after"), func(t api.Throttled) bool {
			return (!q.Has("rule") || t.Rule == q.Get("rule")) && (!q.Has("shadow") || t.Shadow == shadow)
		})
		return throttledAnswer{Throttled: append([]api.Throttled{}, page...), Next: next, Truncated: next != ""}, err
	})
}

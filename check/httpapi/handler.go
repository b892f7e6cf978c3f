package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
)

// handler answers a request, or returns the error that is answered as a problem.
type handler func(w http.ResponseWriter, r *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		writeProblem(w, r, err)
	}
}

// withParameters returns a handler that accepts only these parameters, each at most once, except value. It refuses
// other parameters: if a mistyped mode were ignored, the check would charge.
func withParameters(h handler, names ...string) handler {
	var logged access.Refusals
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			deny, _ := denyStatus(q) // what could be read of it
			return writeRefusal(w, r, fmt.Errorf("%w: %w", api.ErrBadRequest, err), deny)
		}
		if err = expected(q, names); err == nil {
			err = h(w, r)
		}
		deny, bad := denyStatus(q)
		if err == nil || bad != nil || deny == 0 || !slices.Contains(names, "deny_status") {
			return err
		}
		return writeMisuse(w, r, err, deny, &logged)
	}
}

// expected returns an error if the name of a parameter is not in names, or if a parameter is given twice.
func expected(q url.Values, names []string) error {
	for _, name := range slices.Sorted(maps.Keys(q)) { // the same parameter is named each time
		values := q[name]
		if !slices.Contains(names, name) {
			return fmt.Errorf("%w: unknown parameter %s", api.ErrBadRequest, api.Shorten(name))
		}
		if len(values) > 1 && name != "value" {
			return fmt.Errorf("%w: parameter %s is given %d times", api.ErrBadRequest, api.Shorten(name), len(values))
		}
	}
	return nil
}

// respond answers with what was asked for.
func respond(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, v)
}

// writeJSON writes an answer. If the status is that of an error, the content type is that of a problem. It always
// returns nil, so that a handler can end with it.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return nil
	}
	contentType := "application/json"
	if status >= http.StatusBadRequest {
		contentType = "application/problem+json"
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the caller is gone if this fails
	return nil
}

package httpapi

import (
	"fmt"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
)

// each answers several keys independently of each other. The status is 200 whatever the answers are. If a check is
// invalid or has no answer, its problem is in its place.
func (s *Server) each(w http.ResponseWriter, r *http.Request, body checkBody) error {
	if n := len(body.Checks); n == 0 || n > maxChecks || body.Key != "" || body.Cost != nil || body.Values != nil {
		return fmt.Errorf(`%w: "each" needs "checks" alone, 1 to %d of them, and has %d`, api.ErrBadRequest,
			maxChecks, n)
	}
	mode, err := modeOf(body.Mode) // of the checks that have none
	if err != nil {
		return err
	}
	out := make([]any, len(body.Checks))
	reqs := make([]api.CheckRequest, 0, len(body.Checks))
	index := make([]int, 0, len(body.Checks)) // request → its check
	for i, one := range body.Checks {
		if one.Checks != nil || one.Each {
			return fmt.Errorf(`%w: checks[%d] has "checks" or "each" of its own`, api.ErrBadRequest, i)
		}
		req, err := one.request()
		if err != nil {
			out[i] = eachError{one.Key, problemOf(err)}
			continue
		}
		req.Mode = req.Mode.Or(mode)
		reqs, index = append(reqs, req), append(index, i)
	}
	for n, e := range s.checks.CheckEach(r.Context(), reqs) {
		if e.Err != nil {
			out[index[n]] = eachError{reqs[n].Key, problemOf(e.Err)}
			continue
		}
		out[index[n]] = e.CheckAnswer
	}
	if err := r.Context().Err(); err != nil { // the caller is gone: only the log of a proxy has the status
		return err
	}
	return writeJSON(w, http.StatusOK, eachAnswer{out})
}

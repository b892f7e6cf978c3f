package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/headers"
)

// Bounds of a request.
const (
	maxCheckBody  = 64 << 10
	maxEventsBody = 8 << 20
	maxChecks     = 100
)

func (s *Server) postCheck(w http.ResponseWriter, r *http.Request) error {
	var body checkBody
	if err := s.readJSON(w, r, &body); err != nil {
		return err
	}
	r, err := withKey(r)
	if err != nil {
		return err
	}
	if body.Each {
		return s.each(w, r, body)
	}
	req, err := body.request()
	if err != nil {
		return err
	}
	if req.Checks == nil {
		return s.one(w, r, req, 0)
	}
	answer, err := s.checks.CheckAll(r.Context(), req.Checks)
	if err != nil {
		return err
	}
	headers.Set(w.Header(), answer.Checks, answer.RetryAfterMs)
	if answer.Allowed || req.Checks[0].Mode == api.ModeCharge {
		return writeJSON(w, http.StatusOK, answer)
	}
	counted := "nothing was charged: "
	if slices.ContainsFunc(answer.Checks, func(a api.CheckAnswer) bool { return a.Charged }) {
		counted = `only the checks with "charged" count (on_deny: charge): `
	}
	return writeJSON(w, http.StatusTooManyRequests, denials{overLimit(w, http.StatusTooManyRequests, counted,
		answer.Checks...), answer})
}

func (s *Server) getCheck(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	deny, err := denyStatus(q)
	if err != nil {
		return err
	}
	req := api.CheckRequest{Key: q.Get("key"), Cost: 1}
	if q.Has("mode") {
		mode := q.Get("mode")
		if req.Mode, err = modeOf(&mode); err != nil {
			return err
		}
	}
	if q.Has("extractor") {
		if q.Has("key") || q.Has("cost") || q.Has("value") {
			return fmt.Errorf("%w: the extractor gives the key and the cost: leave out key, cost and value",
				api.ErrBadRequest)
		}
		return s.extracted(w, r, q.Get("extractor"), req.Mode, deny)
	}
	if req.Values, err = valuesOf(q["value"]); err == nil && q.Has("cost") {
		if req.Cost, err = api.ParseCount(q.Get("cost")); err != nil {
			err = fmt.Errorf("cost: %w", err)
		}
	}
	if err != nil {
		return writeRefusal(w, r, err, deny)
	}
	return s.one(w, r, req, deny)
}

// denyStatus returns the status that a request asks for in place of 429, or 0.
func denyStatus(q url.Values) (int, error) {
	if !q.Has("deny_status") {
		return 0, nil
	}
	deny, err := strconv.Atoi(q.Get("deny_status"))
	if err != nil || deny < 400 || deny > 499 {
		return 0, fmt.Errorf("%w: deny_status=%s is not between 400 and 499", api.ErrBadRequest,
			api.Shorten(q.Get("deny_status")))
	}
	return deny, nil
}

// extracted answers GET /v1/check?extractor=NAME.
func (s *Server) extracted(w http.ResponseWriter, r *http.Request, name string, mode api.Mode, denyStatus int) error {
	req, pass, err := s.config.Extractors.Extract(name, r)
	switch {
	case errors.Is(err, access.ErrNoExtractor):
		return err
	case errors.Is(err, access.ErrMissing) && pass:
		return writeJSON(w, http.StatusOK, api.CheckAnswer{Allowed: true, Cost: 1,
			Windows: []api.WindowState{}, Source: api.SourcePolicy, Note: err.Error() + "; it lets such requests pass"})
	case errors.Is(err, access.ErrMissing):
		return writeRefusal(w, r, fmt.Errorf("%w: %w", api.ErrBadRequest, err), denyStatus)
	case err != nil:
		return writeRefusal(w, r, err, denyStatus)
	}
	req.Mode = mode
	return s.one(w, r, req, denyStatus)
}

// valuesOf reads parameters such as value=user=alice.
func valuesOf(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	values := make(map[string]string, len(list))
	for _, text := range list {
		field, value, ok := strings.Cut(text, "=")
		switch _, twice := values[field]; {
		case !ok:
			return nil, fmt.Errorf("%w: value=%s, expected value=FIELD=VALUE", api.ErrBadRequest, api.Shorten(text))
		case twice:
			return nil, fmt.Errorf("%w: two values of %s", api.ErrBadRequest, api.Shorten(field))
		}
		values[field] = value
	}
	return values, api.ValidateValues(values)
}

// modeOf reads a mode; nil: none was given. An empty mode is an error.
func modeOf(text *string) (api.Mode, error) {
	switch {
	case text == nil:
		return "", nil
	case *text == "":
		return "", fmt.Errorf(`%w: mode is empty, expected %s, %s or %s`, api.ErrBadRequest, api.ModeTake, api.ModeLook,
			api.ModeCharge)
	}
	return api.Mode(*text), api.Mode(*text).Validate()
}

func (s *Server) one(w http.ResponseWriter, r *http.Request, req api.CheckRequest, denyStatus int) error {
	a, err := s.checks.Check(r.Context(), req)
	if err != nil {
		if req.Mode == api.ModeCharge && errors.Is(err, api.ErrUnavailable) {
			return err // a charge of what has happened is no denial
		}
		return writeRefusal(w, r, err, denyStatus)
	}
	headers.Set(w.Header(), []api.CheckAnswer{a}, a.RetryAfterMs)
	if a.Allowed || req.Mode == api.ModeCharge { // no denial, as above
		return writeJSON(w, http.StatusOK, a)
	}
	denyStatus = cmp.Or(denyStatus, http.StatusTooManyRequests)
	return writeJSON(w, denyStatus, denial{overLimit(w, denyStatus, "", a), a})
}

// overLimit returns the problem of a denial. It describes the answer that denies for longest. Its detail begins with
// counted.
func overLimit(w http.ResponseWriter, status int, counted string, answers ...api.CheckAnswer) api.Problem {
	a := slices.MaxFunc(answers, func(a, b api.CheckAnswer) int {
		return cmp.Compare(uint64(a.RetryAfterMs), uint64(b.RetryAfterMs)) // below 0, no wait helps
	})
	title := "Over the limit"
	detail := cmp.Or(a.DenialDetail(a.Key, a.Rule),
		fmt.Sprintf("%s is over the limit of rule %q", api.Shorten(a.Key), a.Rule))
	again := fmt.Sprintf("; it is admitted again in %d ms", a.RetryAfterMs)
	if a.Blocked() {
		title, detail = "Blocked", api.Shorten(a.Key)+" is blocked by an operator"
		if a.Reason != "" {
			detail += ": " + a.Reason
		}
		again = fmt.Sprintf("; the block ends in %d ms", a.RetryAfterMs)
	}
	switch {
	case a.RetryAfterMs < 0 && a.Blocked():
		again = ""
	case a.RetryAfterMs < 0:
		again = "; it can never be admitted: the cost is above the limit"
	case a.RetryAfterMs == 0: // this process denied by its own count: the note says why
		again = "; no wait is known"
	}
	return withRequestID(w, api.Problem{Type: api.ProblemPrefix + "over-limit", Title: title, Status: status,
		Detail: counted + detail + again})
}

// checkBody is the JSON form of api.CheckRequest. A missing cost means 1, and a cost of 0 is an error.
type checkBody struct {
	Key    string      `json:"key"`
	Cost   *int64      `json:"cost"`
	Mode   *string     `json:"mode"` // beside Checks: the mode of the checks that have none
	Checks []checkBody `json:"checks"`
	Each   bool        `json:"each"` // Checks are decided independently of each other

	Values map[string]string `json:"values"`
}

func (b checkBody) request() (api.CheckRequest, error) {
	r := api.CheckRequest{Key: b.Key, Cost: 1, Values: b.Values}
	if b.Cost != nil {
		if err := api.ValidateCount(*b.Cost); err != nil {
			return r, fmt.Errorf("cost: %w", err)
		}
		r.Cost = *b.Cost
	}
	var err error
	if r.Mode, err = modeOf(b.Mode); err != nil {
		return r, err
	}
	if b.Checks == nil {
		return r, nil
	}
	if b.Values != nil {
		return r, fmt.Errorf(`%w: "values" beside "checks": each check has its own`, api.ErrBadRequest)
	}
	if b.Key != "" || b.Cost != nil {
		return r, fmt.Errorf(`%w: give either "key" and "cost" or "checks"`, api.ErrBadRequest)
	}
	r.Checks = []api.CheckRequest{}
	for i, one := range b.Checks {
		if one.Checks != nil || one.Each {
			return r, fmt.Errorf(`%w: checks[%d] has "checks" or "each" of its own`, api.ErrBadRequest, i)
		}
		c, err := one.request()
		if err != nil {
			return r, fmt.Errorf("checks[%d]: %w", i, err)
		}
		c.Mode = c.Mode.Or(r.Mode)
		r.Checks = append(r.Checks, c)
	}
	if n := len(r.Checks); n == 0 || n > maxChecks {
		return r, fmt.Errorf(`%w: "checks" has %d entries, expected 1 to %d`, api.ErrBadRequest, n, maxChecks)
	}
	return r, nil
}

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

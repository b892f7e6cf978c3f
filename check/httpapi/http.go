package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/headers"
)

// Bounds of a request.
const (
	maxCheckBody  = 64 << 10
	maxEventsBody = 8 << 20
	maxChecks     = 100
	listedAtMost  = 10_000
)

// Handler serves the interface to everybody; see Routes.
func (s *Server) Handler(ready func(context.Context) error) http.Handler {
	return NewRouter(nil, s.Routes(ready)...)
}

// Routes are the interface: checks, events, keys, the list of who is throttled,
// its own description, and health.
func (s *Server) Routes(ready func(context.Context) error) []Route {
	return append(HealthRoutes(ready), []Route{
		{Method: "POST", Path: "/v1/check", Scope: access.ScopeCheck, Serve: http.HandlerFunc(s.postCheck)},
		{Method: "GET", Path: "/v1/check", Scope: access.ScopeCheck, Serve: http.HandlerFunc(s.getCheck)},
		{Method: "POST", Path: "/v1/events", Scope: access.ScopeAppend, Serve: http.HandlerFunc(s.postEvents)},
		{Method: "GET", Path: keysPath, Scope: access.ScopeRead, Serve: http.HandlerFunc(s.getKey)},
		{Method: "DELETE", Path: keysPath, Scope: access.ScopeAdmin, Serve: http.HandlerFunc(s.deleteKey)},
		{Method: "GET", Path: "/v1/throttled", Scope: access.ScopeRead, Serve: http.HandlerFunc(s.getThrottled)},
		{Method: "GET", Path: "/openapi.json", Scope: access.ScopeRead, Serve: http.HandlerFunc(getOpenAPI)},
	}...)
}

// keysPath is what stands before a key in a path.
const keysPath = "/v1/keys/"

// HealthRoutes are /healthz (the process lives) and /readyz (it can do its
// work). They are open to everybody and tell no more than that: ready says why
// not in the log, if it does.
func HealthRoutes(ready func(context.Context) error) []Route {
	return []Route{
		{Method: "GET", Path: "/healthz", Open: true, Serve: http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			writeJSON(w, "application/json", http.StatusOK, statusAnswer{"ok"})
		})},
		{Method: "GET", Path: "/readyz", Open: true, Serve: http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			if ready != nil && ready(r.Context()) != nil {
				writeProblem(w, api.ErrUnavailable)
				return
			}
			writeJSON(w, "application/json", http.StatusOK, statusAnswer{"ready"})
		})},
	}
}

func (s *Server) postCheck(w http.ResponseWriter, r *http.Request) {
	var body checkBody
	if err := readJSON(w, r, &body); err != nil {
		writeProblem(w, err)
		return
	}
	if body.Each {
		s.each(w, r, body)
		return
	}
	req, err := body.request()
	if err != nil {
		writeProblem(w, err)
		return
	}
	if req.Checks == nil {
		s.one(w, r, req, http.StatusTooManyRequests)
		return
	}
	if len(req.Checks) == 0 || len(req.Checks) > maxChecks {
		writeProblem(w, fmt.Errorf(`%w: "checks" has %d entries, expected 1 to %d`, api.ErrBadRequest,
			len(req.Checks), maxChecks))
		return
	}
	answer, err := s.checks.CheckAll(r.Context(), req.Checks)
	if err != nil {
		writeProblem(w, err)
		return
	}
	headers.Set(w.Header(), answer.Checks, answer.RetryAfterMs)
	if answer.Allowed {
		writeJSON(w, "application/json", http.StatusOK, answer)
		return
	}
	writeJSON(w, "application/problem+json", http.StatusTooManyRequests, denials{overLimit(http.StatusTooManyRequests,
		"at least one key is over its limit, nothing was charged", answer.RetryAfterMs), answer})
}

func (s *Server) getCheck(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeProblem(w, fmt.Errorf("%w: %w", api.ErrBadRequest, err))
		return
	}
	for name, values := range q {
		if len(values) > 1 {
			writeProblem(w, fmt.Errorf("%w: parameter %s stands %d times", api.ErrBadRequest, api.Shorten(name),
				len(values)))
			return
		}
		if name != "key" && name != "cost" && name != "deny_status" && name != "extractor" {
			writeProblem(w, fmt.Errorf("%w: unknown parameter %s", api.ErrBadRequest, api.Shorten(name)))
			return
		}
	}
	req := api.CheckRequest{Key: q.Get("key"), Cost: 1}
	if q.Has("cost") {
		n, err := strconv.ParseInt(q.Get("cost"), 10, 64)
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: cost=%s is no integer", api.ErrBadCount, api.Shorten(q.Get("cost"))))
			return
		}
		if err := api.ValidateCount(n); err != nil {
			writeProblem(w, err)
			return
		}
		req.Cost = n
	}
	deny := http.StatusTooManyRequests
	if q.Has("deny_status") {
		n, err := strconv.Atoi(q.Get("deny_status"))
		if err != nil || n < 400 || n > 499 {
			writeProblem(w, fmt.Errorf("%w: deny_status=%s is not between 400 and 499", api.ErrBadRequest,
				api.Shorten(q.Get("deny_status"))))
			return
		}
		deny = n
	}
	if !q.Has("extractor") {
		s.one(w, r, req, deny)
		return
	}
	if q.Has("key") || q.Has("cost") {
		writeProblem(w, fmt.Errorf("%w: the extractor tells key and cost: give none besides", api.ErrBadRequest))
		return
	}
	s.extracted(w, r, q.Get("extractor"), deny)
}

// extracted answers GET /v1/check?extractor=NAME.
func (s *Server) extracted(w http.ResponseWriter, r *http.Request, name string, denyStatus int) {
	req, pass, err := s.config.Extractors.Extract(name, r)
	switch {
	case errors.Is(err, access.ErrNoExtractor):
		writeProblem(w, err)
	case errors.Is(err, access.ErrMissing) && pass:
		writeJSON(w, "application/json", http.StatusOK, api.CheckAnswer{Allowed: true, Cost: 1,
			Windows: []api.WindowState{}, Source: api.SourcePolicy, Note: err.Error() + "; it lets such requests pass"})
	case errors.Is(err, access.ErrMissing):
		writeRefusal(w, fmt.Errorf("%w: %w", api.ErrBadRequest, err), denyStatus)
	case err != nil:
		writeRefusal(w, err, denyStatus)
	default:
		s.one(w, r, req, denyStatus)
	}
}

func (s *Server) one(w http.ResponseWriter, r *http.Request, req api.CheckRequest, denyStatus int) {
	a, err := s.checks.Check(r.Context(), req)
	if err != nil {
		writeRefusal(w, err, denyStatus)
		return
	}
	headers.Set(w.Header(), []api.CheckAnswer{a}, a.RetryAfterMs)
	if a.Allowed {
		writeJSON(w, "application/json", http.StatusOK, a)
		return
	}
	writeJSON(w, "application/problem+json", denyStatus, denial{overLimit(denyStatus,
		fmt.Sprintf("%s is over the limit of rule %q", api.Shorten(a.Key), a.Rule), a.RetryAfterMs), a})
}

func overLimit(status int, detail string, retryMs int64) api.Problem {
	return api.Problem{Type: api.ProblemPrefix + "over-limit", Title: "Over the limit", Status: status,
		Detail: fmt.Sprintf("%s; it is admitted again in %d ms", detail, retryMs)}
}

// checkBody is api.CheckRequest as it is read: a cost that is not there is 1,
// one that is 0 is an error.
type checkBody struct {
	Key    string      `json:"key"`
	Cost   *int64      `json:"cost"`
	Checks []checkBody `json:"checks"`
	Each   bool        `json:"each"` // Checks are decided independently of each other
}

func (b checkBody) request() (api.CheckRequest, error) {
	r := api.CheckRequest{Key: b.Key, Cost: 1}
	if b.Cost != nil {
		if err := api.ValidateCount(*b.Cost); err != nil {
			return r, err
		}
		r.Cost = *b.Cost
	}
	if b.Checks == nil {
		return r, nil
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
		r.Checks = append(r.Checks, c)
	}
	return r, nil
}

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
		writeProblem(w, err)
		return
	}
	state, err := s.checks.Peek(r.Context(), key)
	if err != nil {
		writeProblem(w, err)
		return
	}
	writeJSON(w, "application/json", http.StatusOK, state)
}

func (s *Server) deleteKey(w http.ResponseWriter, r *http.Request) {
	key, err := keyOf(r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	had, err := s.checks.Reset(r.Context(), key)
	if err != nil {
		writeProblem(w, err)
		return
	}
	writeJSON(w, "application/json", http.StatusOK, resetAnswer{key, had})
}

func notAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	writeJSON(w, "application/problem+json", http.StatusMethodNotAllowed,
		api.Problem{Type: "about:blank", Title: "Method not allowed", Status: http.StatusMethodNotAllowed,
			Detail: "no " + r.Method + " here, only " + allow})
}

func (s *Server) getThrottled(w http.ResponseWriter, r *http.Request) {
	list := throttledAnswer{Throttled: []api.Throttled{}}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.AppendTimeout)
	defer cancel()
	for t, err := range s.checks.Throttled(ctx) {
		if err != nil {
			writeProblem(w, fmt.Errorf("%w: %w", api.ErrUnavailable, err))
			return
		}
		if len(list.Throttled) == listedAtMost {
			list.Truncated = true
			break
		}
		list.Throttled = append(list.Throttled, t)
	}
	writeJSON(w, "application/json", http.StatusOK, list)
}

// readJSON decodes one JSON object strictly; the error names the place.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := readBody(w, r, maxCheckBody)
	if err != nil {
		return err
	}
	if !utf8.Valid(body) {
		return fmt.Errorf("%w: the body is not valid UTF-8", api.ErrBadRequest)
	}
	if at := loneSurrogate(body); at >= 0 {
		return fmt.Errorf("%w: at byte %d: %s is half a character (a surrogate without its other one)",
			api.ErrBadRequest, at, body[at:at+6])
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := exactFields(body); err != nil {
		return err
	}
	if err := dec.Decode(into); err != nil {
		return badJSON(err, len(body))
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one JSON value, from byte %d on", api.ErrBadRequest, end)
	}
	return nil
}

// badJSON adds the place to an error of the decoder, where it has one.
func badJSON(err error, size int) error {
	var syntax *json.SyntaxError
	var value *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%w: at byte %d: %w", api.ErrBadRequest, syntax.Offset, err)
	case errors.As(err, &value):
		return fmt.Errorf("%w: at byte %d: %s is a %s, expected %s", api.ErrBadRequest, value.Offset,
			cmp.Or(value.Field, "the value"), value.Value, expectedJSON(value.Type.Kind()))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: at byte %d: the JSON ends too early", api.ErrBadRequest, size)
	}
	return fmt.Errorf("%w: %w", api.ErrBadRequest, err)
}

// readBody reads a body of up to most bytes. One that is compressed would have to
// be bounded twice, and nobody needs it: events are appended by the megabyte at most.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil, fmt.Errorf("%w: Content-Encoding is %s, expected none", errEncoding, api.Shorten(coding))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, fmt.Errorf("%w: over %d bytes", api.ErrBodyTooLarge, most)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: reading the body: %w", api.ErrBadRequest, err)
	}
	return body, nil
}

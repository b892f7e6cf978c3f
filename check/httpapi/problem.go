package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/inflight"
)

// problems: error → the answer. The type is made of the error's name (api.NameOf), and a client turns it back into
// the error.
var problems = []struct {
	err    error
	title  string
	status int
}{
	{api.ErrBadKey, "The key cannot be counted", http.StatusBadRequest},
	{api.ErrBadCount, "The count or cost is out of bounds", http.StatusBadRequest},
	{api.ErrBadID, "The id of an event cannot be kept", http.StatusBadRequest},
	{api.ErrBadValue, "A value cannot be counted", http.StatusBadRequest},
	{api.ErrBadOverride, "The override cannot be set", http.StatusBadRequest},
	{api.ErrNoOverride, "There is no override", http.StatusNotFound},
	{api.ErrCostExceedsLimit, "The cost is above the limit and can never be admitted", http.StatusBadRequest},
	{errBusy, "Too much is under way", http.StatusServiceUnavailable},
	{errEncoding, "The body is compressed", http.StatusUnsupportedMediaType},
	{errLate, "The body came too slowly", http.StatusRequestTimeout},
	{api.ErrBodyTooLarge, "The request body is too large", http.StatusRequestEntityTooLarge},
	{api.ErrBadIdempotencyKey, "The Idempotency-Key cannot be kept", http.StatusBadRequest},
	{api.ErrIdempotencyKeyReused, "The Idempotency-Key was used for another request", http.StatusUnprocessableEntity},
	{api.ErrBadRequest, "The request cannot be read", http.StatusBadRequest},
	{api.ErrUnauthenticated, "Not authenticated", http.StatusUnauthorized},
	{api.ErrForbidden, "Not permitted", http.StatusForbidden},
	{api.ErrNoReservation, "There is no such reservation", http.StatusNotFound},
	{api.ErrReservationExpired, "The reservation has expired", http.StatusGone},
	{api.ErrReservationSettled, "The reservation is settled otherwise", http.StatusConflict},
	{api.ErrNeedsReservation, "The key takes reservations only", http.StatusBadRequest},
	{api.ErrNoRule, "No rule matches the key", http.StatusNotFound},
	{api.ErrOutcomeUnknown, "It may or may not have been stored", http.StatusServiceUnavailable},
	{context.Canceled, "The caller went away", statusClientClosed},
	{api.ErrBacklog, "Workers are behind", http.StatusServiceUnavailable},
	{errNotReady, "The process is not ready", http.StatusServiceUnavailable},
	{api.ErrUnavailable, "Redis cannot do it now", http.StatusServiceUnavailable},
}

// details: error → the text for the caller, if check.ErrorText says too much or too little.
var details = map[error]string{
	errNotReady: "the process is not ready: its log has the reason",
	errLate:     inflight.ErrLate.Error(),
}

// busyError means that the process has too many listings or bodies under way. A client receives it as
// api.ErrUnavailable, although Redis works.
type busyError string

var errBusy = busyError("the server is busy")

func (e busyError) Error() string { return string(errBusy) + ": " + string(e) }

// Is makes every busyError equal to errBusy, whatever its text, and to api.ErrUnavailable.
func (busyError) Is(target error) bool { return target == errBusy || target == api.ErrUnavailable }

// errNotReady is for a process that cannot reach Redis or NATS. A client receives it as api.ErrUnavailable.
var errNotReady = fmt.Errorf("%w: not ready", api.ErrUnavailable)

// errEncoding is for a body that is compressed. A client receives it as api.ErrBadRequest.
var errEncoding = fmt.Errorf("%w: unsupported encoding", api.ErrBadRequest)

// errLate is for a body that did not arrive in time. A client receives it as api.ErrUnavailable, because it may send
// the request again.
var errLate = fmt.Errorf("%w: %w", api.ErrUnavailable, inflight.ErrLate)

// statusClientClosed is the status that nginx logs for a caller that did not wait. A caller that closed only its
// sending half can still read it.
const statusClientClosed = 499

func problemOf(err error) api.Problem {
	for _, p := range problems {
		if errors.Is(err, p.err) {
			return api.Problem{Type: api.ProblemPrefix + cmp.Or(api.NameOf(p.err), "canceled"), Title: p.title,
				Status: p.status, Detail: cmp.Or(details[p.err], detailOf(err))}
		}
	}
	return api.Problem{Type: api.ProblemPrefix + "internal", Title: http.StatusText(http.StatusInternalServerError),
		Status: http.StatusInternalServerError, Detail: check.ErrorText(err)}
}

// detailOf returns the text of an error for the caller. The text of a busyError contains no secrets.
func detailOf(err error) string {
	if busy := busyError(""); errors.As(err, &busy) {
		return busy.Error()
	}
	return check.ErrorText(err)
}

func writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := identify(w, r, problemOf(err), err)
	switch {
	case errors.Is(err, api.ErrBacklog):
		w.Header().Set("Retry-After", "5") // seconds; it is not known how long it will take
	case errors.Is(err, errBusy):
		w.Header().Set("Retry-After", "2")
	}
	_ = writeJSON(w, p.Status, p)
}

// writeRefusal answers with deny_status, if the request has one, if on_error denies, or if the key, the cost or a value
// is invalid. nginx takes any other status for a failed check. If it is set up to let those pass, a caller could pass
// with an invalid key. (The proxy itself sets the other parameters: an error in them is no denial. writeMisuse answers
// a request for a key whose rule takes reservations only.)
func writeRefusal(w http.ResponseWriter, r *http.Request, err error, denyStatus int) error {
	p := problemOf(err)
	refused := p.Status == http.StatusBadRequest && !errors.Is(err, api.ErrNeedsReservation)
	if denyStatus == 0 || !refused && !errors.Is(err, api.ErrUnavailable) {
		return err
	}
	p.Status = denyStatus
	return writeJSON(w, denyStatus, identify(w, r, p, err))
}

// writeMisuse answers a request with deny_status and an error in the proxy's own parameters or setup. The status is
// 500, as in Router.refuse, and the log has the first of each kind. A key whose rule takes reservations only is denied:
// the caller may have chosen the key, to pass.
func writeMisuse(w http.ResponseWriter, r *http.Request, err error, denyStatus int, logged *access.Refusals) error {
	p := problemOf(err)
	if p.Status != http.StatusBadRequest {
		return err
	}
	p.Status = http.StatusInternalServerError
	log, _ := r.Context().Value(logKey{}).(serverLog)
	reason := err.Error()
	if errors.Is(err, api.ErrNeedsReservation) {
		p.Status = denyStatus
		reason = p.Type // the text has the key, and each caller may have another
	}
	logged.Log(log.Logger, r.URL.Path, reason, err, "remote", r.RemoteAddr, "status", p.Status)
	return writeJSON(w, p.Status, withID(w, r, p))
}

// notFound answers a request for a path that is not there.
func notFound(w http.ResponseWriter, r *http.Request, expected string) {
	_ = writeJSON(w, http.StatusNotFound, withID(w, r, api.Problem{Type: api.ProblemPrefix + "not-found",
		Title: "Not found", Status: http.StatusNotFound,
		Detail: fmt.Sprintf("no %s %s%s", r.Method, api.Shorten(r.URL.Path), expected)}))
}

package api

import (
	"errors"
	"strings"
)

// ProblemPrefix is the beginning of the types of our problems. The rest is the error's name, which is also the reason
// of a gRPC error's ErrorInfo.
const ProblemPrefix = "urn:streamcounter:"

// ErrorDomain is the domain of that ErrorInfo.
const ErrorDomain = "streamcounter"

// named are the errors that a caller can branch on, by the names of their problems. If an error wraps several of
// these, the first one in the list decides its name.
var named = []struct {
	name string
	err  error
}{
	{"bad-key", ErrBadKey},
	{"bad-count", ErrBadCount},
	{"bad-id", ErrBadID},
	{"bad-value", ErrBadValue},
	{"bad-override", ErrBadOverride},
	{"cost-exceeds-limit", ErrCostExceedsLimit},
	{"body-too-large", ErrBodyTooLarge},
	{"bad-idempotency-key", ErrBadIdempotencyKey},
	{"no-reservation", ErrNoReservation},
	{"reservation-expired", ErrReservationExpired},
	{"reservation-settled", ErrReservationSettled},
	{"needs-reservation", ErrNeedsReservation},
	{"idempotency-key-reused", ErrIdempotencyKeyReused},
	{"bad-request", ErrBadRequest},
	{"unauthenticated", ErrUnauthenticated},
	{"forbidden", ErrForbidden},
	{"no-rule", ErrNoRule},
	{"no-override", ErrNoOverride},
	{"outcome-unknown", ErrOutcomeUnknown},
	{"backlog", ErrBacklog},
	{"unavailable", ErrUnavailable},
}

// ErrorNamed returns the error of a problem's type, with or without the prefix, or nil if no error has the type.
func ErrorNamed(typ string) error {
	name := strings.TrimPrefix(typ, ProblemPrefix)
	for _, n := range named {
		if n.name == name {
			return n.err
		}
	}
	return nil
}

// NameOf returns the name of the error that err is or wraps. It is empty if the error has no name here.
func NameOf(err error) string {
	for _, n := range named {
		if errors.Is(err, n.err) {
			return n.name
		}
	}
	return ""
}

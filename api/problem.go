package api

import "strings"

// ProblemPrefix is what the types of our problems begin with. The rest is the
// error's name, which is also the reason of a gRPC error's ErrorInfo.
const ProblemPrefix = "urn:streamcounter:"

// ErrorDomain is the domain of that ErrorInfo.
const ErrorDomain = "streamcounter"

// byName: the name of a problem → the error that a caller can branch on.
var byName = map[string]error{
	"bad-key":            ErrBadKey,
	"bad-count":          ErrBadCount,
	"bad-id":             ErrBadID,
	"cost-exceeds-limit": ErrCostExceedsLimit,
	"body-too-large":     ErrBodyTooLarge,
	"bad-request":        ErrBadRequest,
	"no-rule":            ErrNoRule,
	"outcome-unknown":    ErrOutcomeUnknown,
	"backlog":            ErrBacklog,
	"unavailable":        ErrUnavailable,
	"unauthenticated":    ErrUnauthenticated,
	"forbidden":          ErrForbidden,
}

// ErrorNamed gives the error of a problem's type, with or without the prefix,
// and nil where there is none.
func ErrorNamed(typ string) error {
	return byName[strings.TrimPrefix(typ, ProblemPrefix)]
}

// NameOf gives the name of one of these errors itself, empty for any other.
func NameOf(err error) string {
	for name, e := range byName {
		if e == err {
			return name
		}
	}
	return ""
}

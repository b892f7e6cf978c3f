package check

import (
	"errors"
	"net/http"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// TokenHeader has a token where Authorization is taken: a proxy that asks for
// its caller hands the caller's own Authorization on, and it is not for us.
const TokenHeader = "X-Streamcounter-Token"

// bearerOf gives the token of a request, "" where there is none.
func bearerOf(h http.Header) string {
	if t := h.Get(TokenHeader); t != "" {
		return t
	}
	return bearer(h.Get("Authorization"))
}

// bearer takes the token out of the value of an Authorization header.
func bearer(authorization string) string {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

// challenge says what was missing, as RFC 6750 has it: a token, a good one, or a scope.
func challenge(h, request http.Header, err error, scope Scope) {
	value := `Bearer realm="streamcounter"`
	switch {
	case errors.Is(err, api.ErrForbidden):
		value += `, error="insufficient_scope", scope="` + string(scope) + `"`
	case bearerOf(request) != "":
		value += `, error="invalid_token"`
	}
	h.Set("WWW-Authenticate", value)
}

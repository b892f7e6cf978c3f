package access

import (
	"errors"
	"net/http"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// TokenHeader has a token where Authorization is taken: a proxy that asks for
// its caller hands the caller's own Authorization on, and it is not for us.
const TokenHeader = "X-Streamcounter-Token"

// Bearer gives the token of a request, "" where there is none.
func Bearer(h http.Header) string {
	for _, token := range h.Values(TokenHeader) {
		if token != "" {
			return token
		}
	}
	for _, header := range h.Values("Authorization") {
		if token := bearer(header); token != "" {
			return token
		}
	}
	return ""
}

// bearer takes the token out of the value of an Authorization header.
func bearer(authorization string) string {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

// Challenge says what was missing, as RFC 6750 has it: a token, a good one, or a scope.
func Challenge(h, request http.Header, err error, scope Scope) {
	value := `Bearer realm="streamcounter"`
	switch {
	case errors.Is(err, api.ErrForbidden):
		value += `, error="insufficient_scope", scope="` + string(scope) + `"`
	case Bearer(request) != "":
		value += `, error="invalid_token"`
	}
	h.Set("WWW-Authenticate", value)
}

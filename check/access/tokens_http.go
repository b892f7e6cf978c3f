package access

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// TokenHeader has the token if Authorization is already in use: a proxy that asks for its caller passes on the
// caller's own Authorization, which is not for us.
const TokenHeader = "X-Streamcounter-Token"

// Bearer returns the token of a request, or "" if the request has no token.
func Bearer(h http.Header) string { return bearerIn(h.Values) }

// bearerIn returns the token of the first header that has one. An empty header, which a proxy may add, is skipped.
func bearerIn(values func(header string) []string) string {
	for _, token := range values(TokenHeader) {
		if token != "" {
			return token
		}
	}
	for _, header := range values("Authorization") {
		if token := bearer(header); token != "" {
			return token
		}
	}
	return ""
}

// caller is the sender of a request that was allowed.
type caller struct {
	name  string // of its token, or else in its client certificate, which the server has verified; may be empty
	admin bool   // it has the scope admin
}

type callerKey struct{}

// WithCaller stores in the context of a request who sent it.
func (t *Tokens) WithCaller(r *http.Request) *http.Request {
	c := caller{admin: t == nil}
	if t != nil {
		g, _ := t.Value().find(Bearer(r.Header))
		c = caller{g.name, g.has(ScopeAdmin)}
	}
	if c.name == "" && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		c.name = r.TLS.VerifiedChains[0][0].Subject.CommonName
	}
	return r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
}

// Caller returns the name of the sender of a request that WithCaller stored.
func Caller(ctx context.Context) string {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.name
}

// IsAdmin reports whether the sender has the scope admin, which its route need not ask for.
func IsAdmin(ctx context.Context) bool {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c.admin
}

// bearer takes the token out of the value of an Authorization header.
func bearer(authorization string) string {
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimLeft(token, " ")
}

// Challenge sets the header that says what was missing, as in RFC 6750: a token, a valid token, or a scope.
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

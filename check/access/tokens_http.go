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

// NameOf returns the name of the sender of a request: the name of its token, or else the name in its client
// certificate, which the server has verified. It is empty if there is neither.
func (t *Tokens) NameOf(r *http.Request) string {
	if t != nil {
		if g, ok := t.Value().find(Bearer(r.Header)); ok {
			return g.name
		}
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return r.TLS.VerifiedChains[0][0].Subject.CommonName
	}
	return ""
}

type callerKey struct{}

// WithCaller stores the name of the sender of a request in its context.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// Caller returns the name of the sender of a request that WithCaller stored.
func Caller(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

type adminKey struct{}

// WithAdmin stores that the sender of a request has the scope admin, which its route does not ask for.
func WithAdmin(ctx context.Context) context.Context { return context.WithValue(ctx, adminKey{}, true) }

// IsAdmin reports whether WithAdmin stored that.
func IsAdmin(ctx context.Context) bool { return ctx.Value(adminKey{}) != nil }

// Has reports whether a token may be used for a scope. Unlike Allow it counts no refusal.
func (t *Tokens) Has(bearer string, scope Scope) bool {
	if t == nil {
		return true
	}
	_, err := t.Value().allow(bearer, scope)
	return err == nil
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

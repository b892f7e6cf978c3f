package access

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// TokenHeader has a token where Authorization is taken: a proxy that asks for
// its caller hands the caller's own Authorization on, and it is not for us.
const TokenHeader = "X-Streamcounter-Token"

// Bearer gives the token of a request, "" where there is none.
func Bearer(h http.Header) string { return bearerIn(h.Values) }

// bearerIn takes the first header that has a token: an empty one, which a proxy
// may add, hides none.
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

// NameOf is who sends a request: the name of its token, else the name in its client certificate,
// which the server has verified; empty where there is neither.
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

// WithCaller notes who sends a request.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

// Caller is who sends a request, as far as WithCaller noted it.
func Caller(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

type adminKey struct{}

// WithAdmin notes that the sender of a request has the scope admin, which its route does not ask for.
func WithAdmin(ctx context.Context) context.Context { return context.WithValue(ctx, adminKey{}, true) }

// IsAdmin is whether WithAdmin noted that.
func IsAdmin(ctx context.Context) bool { return ctx.Value(adminKey{}) != nil }

// Has says whether a token may be used for a scope. Unlike Allow it counts no refusal.
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

package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reload"
)

// Scope is what a token may be used for.
type Scope string

// The scopes. ScopeAny is satisfied by any token; it is for a path that does not exist.
const (
	ScopeCheck  Scope = "check"  // ask and charge
	ScopeAppend Scope = "append" // append events
	ScopeRead   Scope = "read"   // read keys, the throttled keys, and metrics
	ScopeAdmin  Scope = "admin"  // reset keys, and all of the others
	ScopeAny    Scope = ""       // whatever scopes a token has
)

// Scopes are those that a token can be given.
var Scopes = []Scope{ScopeCheck, ScopeAppend, ScopeRead, ScopeAdmin}

type digest [sha256.Size]byte

// grant is what one token of the file may do.
type grant struct {
	name   string
	digest digest // SHA-256 of the token
	scopes []Scope
}

func (g grant) has(s Scope) bool {
	return s == ScopeAny || slices.Contains(g.scopes, s) || slices.Contains(g.scopes, ScopeAdmin)
}

// table finds a token's grant in the same time, whatever token is presented. The lookup uses a hash with a secret
// salt, so its duration does not show how close a guess is (decision 0022).
type table struct {
	salt   digest
	grants map[digest]grant // key of the token's digest → what it may do
}

func (t *table) key(sum digest) digest {
	var both [2 * sha256.Size]byte
	copy(both[:], t.salt[:])
	copy(both[sha256.Size:], sum[:])
	return sha256.Sum256(both[:])
}

func (t *table) find(bearer string) (grant, bool) {
	sum := digest(sha256.Sum256([]byte(bearer)))
	g, ok := t.grants[t.key(sum)]
	return g, ok && subtle.ConstantTimeCompare(sum[:], g.digest[:]) == 1
}

// tokenFiles reloads the file. The alias makes the embedded field unexported; an embedded reload.Files would be
// exported.
type tokenFiles = reload.Files[*table]

// Tokens decides who may do what. Its methods may be called from any goroutine. A nil *Tokens lets everybody do
// everything.
type Tokens struct {
	*tokenFiles
	refused *prometheus.CounterVec // reason → how often

	log   *slog.Logger
	first Refusals // of gRPC; HTTP's router has its own
}

// Reasons of a refusal, as labels of its metric.
const (
	refusedNone    = "no_token"
	refusedUnknown = "unknown_token"
	refusedScope   = "scope"
)

// NewTokens loads the tokens of the YAML file at path:
//
//	tokens:
//	  - {name: gateway, token: 6f1c…, scopes: [check]}
//	  - {name: prometheus, sha256: 9b74…, scopes: [read]}
//
// If other users may read the file, a warning is logged. Run and Reload keep the tokens up to date.
func NewTokens(path string, reg prometheus.Registerer, log *slog.Logger) (*Tokens, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	refused := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{Name: "streamcounter_access_refused_total",
		Help: "Requests refused: no_token, unknown_token, scope (the token has another)."}, []string{"reason"})
	for _, reason := range []string{refusedNone, refusedUnknown, refusedScope} {
		refused.WithLabelValues(reason)
	}
	t := &Tokens{log: log, refused: refused}
	var err error
	t.tokenFiles, err = reload.Open("tokens", log, func(files []reload.File) (*table, error) {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o004 != 0 {
			log.Warn("the tokens file can be read by every user of this machine", "path", path, "mode",
				info.Mode().Perm().String(), "fix", "chmod o-r "+path)
		}
		return parseTokens(path, files[0].Data)
	}, path)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Allow reports whether a bearer token may be used for scope. The error wraps api.ErrUnauthenticated if there is no
// token or the token is not known, and api.ErrForbidden if the token has other scopes.
func (t *Tokens) Allow(bearer string, scope Scope) error {
	if t == nil {
		return nil
	}
	reason, err := t.Value().allow(bearer, scope)
	if err != nil {
		t.refused.WithLabelValues(reason).Inc()
	}
	return err
}

var (
	errNoToken      = errors.New("this needs a token, as Authorization: Bearer TOKEN")
	errUnknownToken = errors.New("the token is not known")
)

func (t *table) allow(bearer string, scope Scope) (reason string, err error) {
	if bearer == "" {
		return refusedNone, fmt.Errorf("%w: %w", api.ErrUnauthenticated, errNoToken)
	}
	if len(bearer) > maxTokenBytes { // not worth hashing
		return refusedUnknown, fmt.Errorf("%w: %w", api.ErrUnauthenticated, errUnknownToken)
	}
	g, ok := t.find(bearer)
	if !ok {
		return refusedUnknown, fmt.Errorf("%w: %w", api.ErrUnauthenticated, errUnknownToken)
	}
	if !g.has(scope) {
		return refusedScope, fmt.Errorf("%w: the token %s lacks the scope %s", api.ErrForbidden, g.name, scope)
	}
	return "", nil
}

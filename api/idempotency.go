package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// IdempotencyHeader is the header of a request that may be sent again. Requests with the same header value and the
// same body, within the server's retention, are counted once and have one answer.
const IdempotencyHeader = "Idempotency-Key"

var (
	// ErrBadIdempotencyKey: an Idempotency-Key that is empty, over 100 bytes, or has other
	// characters than visible ASCII.
	ErrBadIdempotencyKey = errors.New("bad idempotency key")
	// ErrIdempotencyKeyReused: the Idempotency-Key was used for a request with another body. Nothing was charged.
	ErrIdempotencyKeyReused = errors.New("idempotency key reused")
)

// maxIdempotencyKey is the longest key in bytes.
const maxIdempotencyKey = 100

// Idempotency is what a caller says about a request that it may send again.
type Idempotency struct {
	// Key is 1 to 100 visible characters of ASCII except " and \\. Random keys, such as UUIDs, belong to one caller.
	Key string
	// Retention is how long the answer must be remembered, if that is less than the server's retention; 0: it is not
	// less.
	Retention time.Duration
	// First: no request had this key before. Within a process, where no answer is lost, a request for one key may then
	// be answered from memory. The header does not have it.
	First bool
}

// Validate refuses an invalid key. The error wraps ErrBadIdempotencyKey.
func (i Idempotency) Validate() error {
	if i.Key == "" || len(i.Key) > maxIdempotencyKey {
		return fmt.Errorf("%w: %s: %s has %d characters, expected 1 to %d", ErrBadIdempotencyKey, IdempotencyHeader,
			Shorten(i.Key), len(i.Key), maxIdempotencyKey)
	}
	for _, c := range []byte(i.Key) {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return fmt.Errorf("%w: %s: %s: expected visible characters of ASCII without \" and \\",
				ErrBadIdempotencyKey, IdempotencyHeader, Shorten(i.Key))
		}
	}
	return nil
}

// Header returns the value of the header.
func (i Idempotency) Header() string {
	if i.Retention <= 0 {
		return `"` + i.Key + `"`
	}
	seconds := int64((i.Retention + time.Second - 1) / time.Second)
	return fmt.Sprintf(`"%s";ttl=%d`, i.Key, seconds)
}

// ParseIdempotency reads the header: a string of structured fields (RFC 9651), as in the IETF draft, or the key
// without quotes, as many clients write it. After a key in quotes, ;ttl=SECONDS may follow: how long its answer must
// be remembered. The error wraps ErrBadIdempotencyKey.
func ParseIdempotency(value string) (Idempotency, error) {
	i := Idempotency{Key: value}
	if quoted, ok := strings.CutPrefix(value, `"`); ok {
		key, after, closed := strings.Cut(quoted, `"`)
		if !closed {
			return i, fmt.Errorf("%w: %s: %s: expected a \" at the end", ErrBadIdempotencyKey, IdempotencyHeader,
				Shorten(value))
		}
		i.Key = key
		if after != "" {
			parameter, _ := strings.CutPrefix(after, ";")
			ttl, ok := strings.CutPrefix(strings.TrimLeft(parameter, " "), "ttl=")
			seconds, err := strconv.ParseInt(ttl, 10, 32)
			if !ok || err != nil || seconds < 1 || after[0] != ';' {
				return i, fmt.Errorf("%w: %s: %s after the key, expected ;ttl=SECONDS", ErrBadIdempotencyKey,
					IdempotencyHeader, Shorten(after))
			}
			i.Retention = time.Duration(seconds) * time.Second
		}
	}
	return i, i.Validate()
}

type idempotencyKey struct{}

// WithIdempotency makes calls with this context carry the key: calls of the clients, and calls of the code that
// answers them.
func WithIdempotency(ctx context.Context, i Idempotency) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, i)
}

// IdempotencyKey returns what WithIdempotency put into the context. Its Key is empty if there is nothing.
func IdempotencyKey(ctx context.Context) Idempotency {
	i, _ := ctx.Value(idempotencyKey{}).(Idempotency)
	return i
}

// Nth returns the context for call i, if one call is made into several. It appends a dot and i to the key of ctx, if
// there is one. If the result is too long for a key, its hash is the key. An invalid key stays as it is.
func Nth(ctx context.Context, i int) context.Context {
	key := IdempotencyKey(ctx)
	if key.Validate() != nil {
		return ctx
	}
	if key.Key += "." + strconv.Itoa(i); len(key.Key) > maxIdempotencyKey {
		key.Key = fmt.Sprintf("%x", sha256.Sum256([]byte(key.Key)))
	}
	key.First = false // if one is lost, all are sent again
	return WithIdempotency(ctx, key)
}

// Again returns the context for a call that is sent again.
func Again(ctx context.Context) context.Context {
	key := IdempotencyKey(ctx)
	if !key.First {
		return ctx
	}
	key.First = false
	return WithIdempotency(ctx, key)
}

// Repeatable reports whether calls with this context carry a key, so that they may be sent again.
func Repeatable(ctx context.Context) bool { return IdempotencyKey(ctx).Key != "" }

// MayRepeat reports whether a call with this context may repeat an earlier one. An answer from memory would not be the
// earlier answer then.
func MayRepeat(ctx context.Context) bool {
	key := IdempotencyKey(ctx)
	return key.Key != "" && !key.First
}

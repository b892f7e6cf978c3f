package redisclient

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// temporary are errors of Redis that end after a while, or after an operator has fixed
// their cause.
var temporary = []string{"LOADING", "BUSY", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "OOM",
	"NOREPLICAS", "MISCONF", "NOSCRIPT", "NOAUTH", "WRONGPASS", "NOPERM", "UNKILLABLE"}

// IsRefusal reports whether an error is an answer of Redis that the same request will
// get again, such as WRONGTYPE. It is false if the server cannot answer now, or did not
// answer.
func IsRefusal(err error) bool {
	var answered redis.Error
	if err == nil || !errors.As(err, &answered) {
		return false
	}
	for _, p := range temporary {
		if strings.HasPrefix(answered.Error(), p) {
			return false
		}
	}
	return true
}

// IsWrongType reports whether an error is the answer of Redis that a key is of another
// type than the command needs. (For a script, the embedded server's error begins with
// other words.)
func IsWrongType(err error) bool {
	var answered redis.Error
	if !errors.As(err, &answered) {
		return false
	}
	text := answered.Error()
	return strings.HasPrefix(text, "WRONGTYPE") || strings.HasPrefix(text, "ERR Error compiling script") &&
		strings.Contains(text, ": WRONGTYPE Operation against a key ")
}

// Word returns the first word of an error reply of Redis, such as OOM. It is empty if Redis did not answer, or answered
// that it has no value (redis.Nil).
func Word(err error) string {
	var answered redis.Error
	if !errors.As(err, &answered) || errors.Is(err, redis.Nil) {
		return ""
	}
	word, _, _ := strings.Cut(answered.Error(), " ")
	return word
}

// Failure says in words whether Redis refused a call or did not answer. It has nothing that callers may not see.
func Failure(err error) string {
	if word := Word(err); word != "" {
		return "Redis refuses it: " + word
	}
	return "Redis does not answer"
}

// NotSent reports whether the command has certainly done nothing after this error: Redis
// answered with it, or no connection could be made.
func NotSent(err error) bool {
	var answered redis.Error
	if errors.As(err, &answered) && !errors.Is(err, redis.Nil) {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	return errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) ||
		errors.Is(err, redis.ErrClosed)
}

// HGetEach returns a field of each of these hashes, in one round trip. It is empty where a hash has no such field.
func HGetEach(ctx context.Context, c redis.UniversalClient, hashes []string, field string) ([]string, error) {
	pipe := c.Pipeline()
	for _, hash := range hashes {
		pipe.HGet(ctx, hash, field)
	}
	replies, err := pipe.Exec(ctx)
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, err
	}
	texts := make([]string, len(replies))
	for i, reply := range replies { // Exec returns the first error alone, and redis.Nil may hide another
		text, err := reply.(*redis.StringCmd).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		texts[i] = text
	}
	return texts, nil
}

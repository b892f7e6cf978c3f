package redisclient

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// passing are the answers of a Redis that will answer otherwise in a while, or
// when somebody has repaired it.
var passing = []string{"LOADING", "BUSY", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "OOM",
	"NOREPLICAS", "MISCONF", "NOSCRIPT", "NOAUTH", "WRONGPASS", "NOPERM", "UNKILLABLE"}

// IsRefusal reports an answer of Redis that the same request will meet again,
// such as WRONGTYPE, from a server that cannot answer now or did not answer.
func IsRefusal(err error) bool {
	var answered redis.Error
	if err == nil || !errors.As(err, &answered) {
		return false
	}
	for _, p := range passing {
		if strings.HasPrefix(answered.Error(), p) {
			return false
		}
	}
	return true
}

// IsWrongType reports the answer of Redis that a key is of another type than the
// command is for. (What the embedded server says of a script begins with words of its own.)
func IsWrongType(err error) bool {
	var answered redis.Error
	if !errors.As(err, &answered) {
		return false
	}
	text := answered.Error()
	return strings.HasPrefix(text, "WRONGTYPE") || strings.HasPrefix(text, "ERR Error compiling script") &&
		strings.Contains(text, ": WRONGTYPE Operation against a key ")
}

// NotSent reports an error after which the command has certainly done nothing:
// Redis answered with it, or no connection was to be had.
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

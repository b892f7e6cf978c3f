// Package lua owns the library that runs inside Redis: it embeds its files, loads it, calls its operations, and reads
// their replies. If a server has no Redis Functions, an operation runs as a script of the files that it needs.
//
// The package that uses an operation has its arguments. Times are milliseconds, units are integers below 2^53.
package lua

import (
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// IsOutOfPeriod reports whether an operation found that the server's clock is outside the periods
// that it was given. It returns the time of that clock, in ms. The operation wrote nothing.
func IsOutOfPeriod(err error) (nowMs int64, ok bool) {
	var answered redis.Error
	if !errors.As(err, &answered) {
		return 0, false
	}
	digits, found := strings.CutPrefix(answered.Error(), "PERIOD ")
	if !found {
		return 0, false
	}
	nowMs, err = strconv.ParseInt(digits, 10, 64)
	return nowMs, err == nil
}

// Now is the time in ms that replaces the server's clock in tests; 0 means the server's clock.
type Now int64

// Arg returns the argument for operations.
func (n Now) Arg() any {
	if n == 0 {
		return ""
	}
	return int64(n)
}

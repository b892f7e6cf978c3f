package check

import (
	"context"
	"errors"
	"regexp"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// noRight finds the user and the command in Redis's answer to a user that lacks a right.
var noRight = regexp.MustCompile(`User (\S+) has no permissions to run the '([^']+)' command`)

// ErrorText returns the text of err for a caller. It leaves out what Redis or the network reported, with addresses
// and key names: that is for the operator. Only a command that the process's user may not run is named.
func ErrorText(err error) string {
	switch {
	case errors.Is(err, api.ErrBacklog), errors.Is(err, context.Canceled):
		return err.Error()
	case redis.HasErrorPrefix(err, "NOPERM"):
		if m := noRight.FindStringSubmatch(err.Error()); m != nil {
			return "Redis refuses the command " + m[2] + " to the user " + m[1]
		}
		return "Redis refuses the keys of this prefix to the process's user"
	case errors.Is(err, errRepeatable):
		return errRepeatable.Error()
	case errors.Is(err, api.ErrOutcomeUnknown):
		return api.ErrOutcomeUnknown.Error()
	case errors.Is(err, api.ErrUnavailable):
		return redisclient.Failure(err)
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded.Error()
	case api.NameOf(err) == "":
		return "internal error"
	}
	return err.Error()
}

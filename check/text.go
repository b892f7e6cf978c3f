package check

import (
	"context"
	"errors"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redisclient"
)

// ErrorText returns the text of err for a caller. It leaves out what Redis or the network reported, with addresses,
// users and key names: that is for the operator.
func ErrorText(err error) string {
	switch {
	case errors.Is(err, api.ErrBacklog), errors.Is(err, context.Canceled):
		return err.Error()
	case errors.Is(err, api.ErrOutcomeUnknown):
		return api.ErrOutcomeUnknown.Error()
	case errors.Is(err, api.ErrUnavailable):
		if word := redisclient.Word(err); word != "" {
			return "Redis refuses it: " + word
		}
		return "Redis does not answer"
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded.Error()
	case api.NameOf(err) == "":
		return "internal error"
	}
	return err.Error()
}

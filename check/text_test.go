package check_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/internal/streamtest"
)

// Callers do not see messages of Redis. They see what is wrong with their request.
func TestErrorText(t *testing.T) {
	redis := errors.New("NOPERM this user has no permissions to access key sc:{3}:log:x at 10.0.0.7:6379")
	for _, err := range []error{fmt.Errorf("%w: %w", api.ErrUnavailable, redis),
		fmt.Errorf("%w: %w", api.ErrOutcomeUnknown, redis), redis,
		fmt.Errorf("%w: %w", redis, context.DeadlineExceeded)} {
		if text := check.ErrorText(err); text == "" || strings.Contains(text, "NOPERM") ||
			strings.Contains(text, "10.0.0.7") {
			t.Errorf("%v: %q", err, text)
		}
	}
	full := fmt.Errorf("%w: %w", api.ErrUnavailable, streamtest.Refusal("OOM command not allowed at 10.0.0.7"))
	if text := check.ErrorText(full); text != "Redis refuses it: OOM" {
		t.Errorf("%v: %q", full, text)
	}
	refused := streamtest.Refusal("NOPERM User serve has no permissions to run the 'scan' command")
	if text, want := check.ErrorText(fmt.Errorf("%w: %w", api.ErrUnavailable, refused)),
		"Redis refuses the command scan to the user serve"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if err := fmt.Errorf("%w: it is empty", api.ErrBadKey); check.ErrorText(err) != err.Error() {
		t.Errorf("%v: %q", err, check.ErrorText(err))
	}
}

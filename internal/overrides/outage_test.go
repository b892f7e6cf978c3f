package overrides

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// An outage is logged when it begins and when it ends, however often overrides are read during it.
func TestAnOutageOfOverridesIsLoggedOnce(t *testing.T) {
	var out strings.Builder
	o := &All{log: slog.New(slog.NewTextHandler(&out, nil))}
	tell, away := o.outage(), errors.New("away")
	for _, err := range []error{nil, away, away, away, nil, nil, away} {
		tell(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		_, line, _ = strings.Cut(line, "msg=")
		lines = append(lines, strings.TrimSpace(line))
	}
	failed := `"overrides cannot be read, those known stay in effect" error=away`
	want := []string{failed, `"overrides are read again"`, failed}
	if got := strings.Join(lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s", got)
	}
}

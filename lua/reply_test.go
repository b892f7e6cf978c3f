package lua

import (
	"strings"
	"testing"
)

// A reply of another form is an error, and what is missing in it is zero.
func TestReply(t *testing.T) {
	for want, list := range map[string][]any{
		"":                            {int64(1), "a"},
		"expected string at 1":        {int64(1)},
		"expected int64 at 0":         {"1", "a"},
		"[1 a 2], expected 2 values":  {int64(1), "a", int64(2)},
		"check script: reply [], exp": {},
	} {
		r := Reply{op: "check", list: list}
		n, text := r.Integer(), r.Text()
		err := r.End()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %d, %q, %v; want %q", list, n, text, err, want)
		}
	}
}

package consumers

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/internal/entry"
)

// The cut of a large dead letter does not split a character.
func TestACutDeadLetterIsValidUTF8(t *testing.T) {
	for _, field := range []string{"k", "ke", "key"} {
		m := entry.Message{Values: map[string]any{field: strings.Repeat("€", 2000)}}
		body := letterOf(m, invalid, "").body
		if !utf8.ValidString(body) || !strings.HasSuffix(body, "€…") || len(body) < 4094 {
			t.Errorf("%d bytes, which end in %q", len(body), body[len(body)-9:])
		}
	}
}

package api_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
)

func TestValidateKey(t *testing.T) {
	for _, c := range []struct {
		name, key, says string // part of the error, "" if the key is good
	}{
		{"spaces and slashes", "GET /a b/../c?d=1", ""},
		{"beyond ASCII", "nutzer:Jürgen 😀", ""},
		{"512 bytes", strings.Repeat("k", 512), ""},
		{"512 bytes of two each", strings.Repeat("é", 256), ""},
		{"the character for what could not be read", "a\uFFFD", ""},
		{"line separator, which is no control", "a\u2028b", ""},
		{"right to left", "שלום", ""},
		{"joined", "👩\u200D🚀 می\u200Cخواهم", ""},
		{"empty", "", "it is empty"},
		{"513 bytes", strings.Repeat("k", 513), "has 513 bytes, at most 512"},
		{"257 characters of 514 bytes", strings.Repeat("é", 257), "has 514 bytes"},
		{"NUL", "\x00", "U+0000 at byte 0"},
		{"newline", "user\n1", "U+000A at byte 4"},
		{"tab", "é\t", "U+0009 at byte 2"},
		{"DEL", "a\x7f", "U+007F"},
		{"first C1 control", "a\u0080", "U+0080"},
		{"last C1 control", "a\u009f", "U+009F"},
		{"lone byte", "a\xff", "not valid UTF-8"},
		{"cut in a character", "é"[:1], "not valid UTF-8"},
		{"surrogate", "\xed\xa0\x80", "not valid UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := api.Event{Key: c.key, Count: 1}.Validate()
			if c.says == "" {
				if err != nil {
					t.Errorf("%q: %v", c.key, err)
				}
				return
			}
			if !errors.Is(err, api.ErrBadKey) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: error %v, want a bad key that says %q", c.key, err, c.says)
			}
		})
	}
}

func TestInvisibleCharactersAreRefused(t *testing.T) {
	for _, r := range "\u202A\u202E\u2066\u2069\u200E\u200B\u2060\uFEFF" +
		"\u00AD\u034F\u115F\u180E\u2061\u206F\u3164\uFFA0\uFFF9\U000E0041" {
		if err := api.ValidateKey("a" + string(r) + "b"); !errors.Is(err, api.ErrBadKey) {
			t.Errorf("%U: %v", r, err)
		}
	}
}

func TestValidateCount(t *testing.T) {
	for n, good := range map[int64]bool{
		1: true, 2: true, 1_000_000_000: true,
		0: false, -1: false, 1_000_000_001: false, -1 << 63: false, 1<<63 - 1: false,
	} {
		err := api.Event{Key: "a", Count: n}.Validate()
		if good && err != nil || !good && !errors.Is(err, api.ErrBadCount) {
			t.Errorf("%d: error %v, want good %t", n, err, good)
		}
	}
}

func TestShorten(t *testing.T) {
	for in, want := range map[string]string{
		"":                             `""`,
		"a\nb":                         `"a\nb"`,
		strings.Repeat("a", 40):        `"` + strings.Repeat("a", 40) + `"`,
		strings.Repeat("a", 41):        `"` + strings.Repeat("a", 40) + `"…`,
		strings.Repeat("a", 39) + "éb": `"` + strings.Repeat("a", 39) + `"…`, // é would be cut in two
		strings.Repeat("\x80", 41):     `""…`,
	} {
		if got := api.Shorten(in); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

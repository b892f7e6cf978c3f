package document_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/document"
)

func parse(text string) error {
	_, err := document.Read("f.yml", []byte(text), "something", func(*document.Document) document.Setter {
		return func(*document.Node, string) error { return nil }
	})
	return err
}

// large is an eighth of the largest size of a file.
const large = document.MaxBytes / 8

func full(head, piece string) string {
	return head + strings.Repeat(piece, (large-len(head))/len(piece))
}

// A large file is read or refused in a time that depends only on its size, and not on its content. The error is short
// and has the place.
func TestReadIsBounded(t *testing.T) {
	numbered := func(head, format string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < large; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	deep, open := "exceeded max depth of 40", "while parsing a flow"
	for what, c := range map[string]struct{ text, at, want string }{
		"brackets":               {full("", "["), "1:41", deep},
		"braces":                 {full("", "{"), "1:41", deep},
		"brackets and line ends": {full("", "[\n"), "41:1", deep},
		"mixed":                  {full("", "{a: ["), "1:101", deep},
		"lists in lists":         {full("", "- "), "1:81", deep},
		"keys of keys":           {full("", "? "), "1:81", deep},
		"a key below a key":      {indented(), "41:42", deep},
		"anchors in lists":       {full("", "&a [*a "), "1:278", "needs quotes"},
		"anchors":                {full("a: [", "&a x, "), "2:1", open},
		"aliases":                {full("a: ", "*a "), "1:4", "needs quotes"},
		"tags":                   {full("a: ", "!a "), "1:7", "did not find expected key"},
		"entries in brackets":    {full("[", "a,"), "2:1", open},
		"commas":                 {full("[", ","), "1:2", open},
		"pairs in braces":        {full("{", "a: b, "), "2:1", open},
		"entries of nothing":     {full("", "-\n"), "", ""},
		"entries with comments":  {full("", "- #\n"), "", ""},
		"keys":                   {numbered("", "k%d: v\n"), "", ""},
		// The files that people write are far within the bounds.
		"the most entries": {"a:\n" + strings.Repeat("- b\n", document.MaxEntries), "", ""},
		"comments": {strings.Repeat("# a line that says why\n", 5000) + "a: b\n" +
			strings.Repeat("    # another\n  # one\n", 5000), "", ""},
		"small blocks": {"a:\n" + strings.Repeat("  - b: c\n    d: e\n    f:\n      - g\n      - {h: i}\n", 5000), "",
			""},
		"in brackets": {"a: [" + strings.Repeat("{b: c, d: [e, f]},\n", 5000) + "]", "", ""},
		"deep":        {"a: " + strings.Repeat("[", 39) + strings.Repeat("]", 39), "", ""},
		"a byte too many": {strings.Repeat("#", document.MaxBytes+1), "1:1",
			"too large: want at most 1048576 bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			err := parse(c.text)
			if c.want == "" {
				if err != nil {
					t.Errorf("%.300v", err)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), "f.yml:"+c.at+": ") ||
				!strings.Contains(err.Error(), c.want) {
				t.Fatalf("%.300v\nwant %s: … %s", err, c.at, c.want)
			}
			if len(err.Error()) > 3000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func indented() string {
	var b strings.Builder
	for i := 0; i < 500; i++ {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

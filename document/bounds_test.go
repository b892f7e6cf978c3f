package document_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/ast"

	"github.com/streamcounter/streamcounter/document"
)

// parse reads a file whatever it holds.
func parse(text string) error {
	_, err := document.Read("f.yml", []byte(text), "something", func(*document.Document) document.Setter {
		return func(ast.Node, string) error { return nil }
	})
	return err
}

// full repeats a piece up to 128 KB; the lexer alone takes a tenth of a second for it.
func full(head, piece string) string {
	return head + strings.Repeat(piece, (128<<10-len(head))/len(piece))
}

// Files that would keep the parser busy for minutes are refused before it sees
// them, with the place and the bound.
func TestReadIsBounded(t *testing.T) {
	numbered := func(head, format string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < 128<<10; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	deep, list, keys := "in each other: want at most 40", "a list: want at most 20000 entries", "a mapping: want at most 100 keys"
	for what, c := range map[string]struct{ text, at, want string }{
		"brackets":               {full("", "["), "1:40", deep},
		"braces":                 {full("", "{"), "1:40", deep},
		"brackets and line ends": {full("", "[\n"), "40:1", deep},
		"mixed":                  {full("", "{a: ["), "1:100", deep},
		"lists in lists":         {full("", "- "), "1:81", deep},
		"keys of keys":           {full("", "? "), "1:81", deep},
		"a key below a key":      {indented(), "41:41", deep},
		"anchors in lists":       {full("", "&a [*a "), "1:277", deep},
		"anchors":                {full("a: [", "&a x, "), "1:120005", "anchors, aliases and tags: want at most 20000"},
		"aliases":                {full("a: ", "*a "), "1:60004", "anchors, aliases and tags: want at most 20000"},
		"tags":                   {full("a: ", "!a "), "1:40004", "anchors, aliases and tags: want at most 20000"},
		"entries of nothing":     {full("", "-\n"), "20001:1", list},
		"entries with comments":  {full("", "- #\n"), "20001:1", list},
		"entries in brackets":    {full("[", "a,"), "1:40003", list},
		"commas":                 {full("[", ","), "1:20002", list},
		"pairs in braces":        {full("{", "a: b, "), "1:120006", list},
		"keys":                   {numbered("", "k%d: v\n"), "101:1", keys},
		"keys of a rule":         {numbered("rules:\n  - name: a\n", "    k%d: v\n"), "103:5", keys},
		"a byte too many":        {strings.Repeat("#", document.MaxBytes+1), "1:1", "too large: want at most 1048576 bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			err := parse(c.text)
			if err == nil || !strings.HasPrefix(err.Error(), "f.yml:"+c.at+": ") || !strings.Contains(err.Error(), c.want) {
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

// What people write is far within the bounds.
func TestTheLargestFilesAreTaken(t *testing.T) {
	for what, text := range map[string]string{
		"entries":      "a:\n" + strings.Repeat("- b\n", document.MaxEntries),
		"comments":     strings.Repeat("# a line that says why\n", 5000) + "a: b\n" + strings.Repeat("    # another\n  # one\n", 5000),
		"small blocks": "a:\n" + strings.Repeat("  - b: c\n    d: e\n    f:\n      - g\n      - {h: i}\n", 5000),
		"in brackets":  "a: [" + strings.Repeat("{b: c, d: [e, f]},\n", 5000) + "]",
		"deep":         "a: " + strings.Repeat("[", 39) + strings.Repeat("]", 39),
	} {
		if err := parse(text); err != nil {
			t.Errorf("%s: %.300v", what, err)
		}
	}
}

// A file without an end is not read to it.
func TestFileReadsNoMoreThanReadTakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil { // sparse
		t.Skipf("no sparse files here: %v", err)
	}
	if data, err := document.File(path); err != nil || len(data) != document.MaxBytes+1 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
}

package document_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// flat reads `rows`, a list of mappings of a, b and rows again, as text.
func flat(text string, secret bool) (string, error) {
	var out []string
	read := document.Read
	if secret {
		read = document.ReadSecret
	}
	_, err := read("f.yml", []byte(text), "rows", func(d *document.Document) document.Setter {
		var rows func() document.Setter
		rows = func() document.Setter {
			return d.List(func(n *document.Node, at string) error {
				got := map[string]*string{"a": new(string), "b": new(string)}
				err := d.Mapping(
					document.Field{Name: "a", Set: document.Leaf(d, got["a"], document.Text)},
					document.Field{Name: "b", Set: document.Leaf(d, got["b"], document.Text)},
					document.Field{Name: "rows", Set: func(n *document.Node, at string) error { return rows()(n, at) }},
				)(n, at)
				for _, name := range slices.Sorted(maps.Keys(got)) {
					out = append(out, *got[name])
				}
				return err
			})
		}
		return d.Mapping(document.Field{Name: "rows", Need: document.Needed, Set: rows()})
	})
	return strings.Join(out, " "), err
}

// << merges fields by the rules of YAML: a mapping's direct fields come first, and of a
// list of mappings, the first mapping does.
func TestMerges(t *testing.T) {
	for text, want := range testkit.Rows(t, "testdata/merges") {
		if got, err := flat(text, false); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// An error has its place. For a secret file it has no text of the file.
func TestMistakes(t *testing.T) {
	for text, want := range testkit.Rows(t, "testdata/mistakes") {
		text = strings.ReplaceAll(text, "MANY", strings.Repeat("- {}\n", 20_001))
		_, err := flat(text, false)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v\nwant %s", text, err, want)
		}
		place, _, _ := strings.Cut(want, ": ")
		if _, err := flat(text, true); err == nil || strings.Contains(err.Error(), "hunter2") ||
			!strings.Contains(err.Error(), place) {
			t.Errorf("as a secret: %.60s: %v", text, err)
		}
	}
}

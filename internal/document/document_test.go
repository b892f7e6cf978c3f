package document_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/document"
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
	for text, want := range map[string]string{
		"rows:\n- &x {a: 1, b: 2}\n- {<<: *x, b: 3}":                               "1 2 1 3",
		"rows:\n- {<<: {a: 1, b: 2}, b: 3}":                                        "1 3",
		"rows:\n- {b: ~, <<: {a: 1, b: 2}}":                                        "1 ",
		"rows:\n- {<<: [{a: 1}, {a: 4, b: 5}]}":                                    "1 5",
		"rows:\n- &x {a: 1}\n- &y {<<: *x, b: 2}\n- {<<: *y, a: 3}":                "1  1 2 3 2",
		"rows:\n- {a: '<<', b: \"<<\"}":                                            "<< <<",
		"rows:\r\n- a: 1 # c\r\n  b: |-\r\n    x\r\n":                              "1 x",
		"\ufeffrows: [{a: 2020-01-01, b: 0x10}, {a: yes, b: True}, {a: 1e3, b: }]": "2020-01-01 0x10 yes True 1e3 ",
	} {
		if got, err := flat(text, false); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// An error has its place. For a secret file it has no text of the file.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"rows:\n- {a: 1, a: hunter2}":                `2:10: field "a" is given twice; first in line 2`,
		"rows:\n- {<<: {a: 1, a: hunter2}}":          `2:15: field "a" is given twice`,
		"rows:\n- {<<: hunter2}":                     `2:8: << "hunter2": want a mapping to take fields from`,
		"rows:\n- {'<<': {a: 1}, hunter2: 1}":        `2:4: unknown field "<<"`,
		"rows:\n- {? [hunter2] : 1}":                 `2:6: unknown field ""`,
		"rows:\n- &x {a: 1}\n- {*x : 1}":             `3:4: unknown field "x"`,
		"rows: &r\n- {a: 1, rows: *r}":               `in each other: want at most 40`,
		"rows:\n- &r {a: 1, <<: *r}":                 `in each other: want at most 40`,
		"rows:\n- {a: !mine hunter2}":                `2:7: a hunter2: want text`,
		"rows:\n- {a: \"hunter2\x07\"}":              `2:15: want UTF-8 text without control characters`,
		"rows:\n- {a: hunter2\xff}":                  `2:14: want UTF-8 text`,
		"rows:\n- {a: hunter2\n":                     `2:3: while parsing a flow mapping`,
		"rows:\n- {a: *hunter2}":                     `2:7: *hunter2: want a name given before with &`,
		"rows:\n- a: b: hunter2":                     `2:7: mapping values are not allowed in this context`,
		"rows: [hunter2":                             `1:7: while parsing a flow sequence`,
		"%YAML 9.9\n---\nrows: hunter2":              `1:1: found incompatible YAML document`,
		"rows:\n" + strings.Repeat("- {}\n", 20_001): `20002:3: a list: want at most 20000 entries`,
	} {
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

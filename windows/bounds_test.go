package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// full repeats a piece up to 128 KB; the lexer alone takes a tenth of a second for it.
func full(head, piece string) string {
	return head + strings.Repeat(piece, (128<<10-len(head))/len(piece))
}

// Files that would keep the parser busy for minutes are refused before it sees
// them, with the place and the bound.
func TestParseIsBounded(t *testing.T) {
	numbered := func(head, format string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; b.Len() < 128<<10; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	deep, list, keys := "in each other: want at most 20", "a list: want at most 3000 entries", "a mapping: want at most 100 keys"
	for what, c := range map[string]struct{ text, at, want string }{
		"brackets":               {full("", "["), "1:20", deep},
		"braces":                 {full("", "{"), "1:20", deep},
		"brackets and line ends": {full("", "[\n"), "20:1", deep},
		"mixed":                  {full("", "{a: ["), "1:50", deep},
		"lists in lists":         {full("", "- "), "1:41", deep},
		"keys of keys":           {full("", "? "), "1:41", deep},
		"a key below a key":      {indented(), "21:21", deep},
		"anchors in lists":       {full("", "&a [*a "), "1:137", deep},
		"anchors":                {full("a: [", "&a x, "), "1:18009", list},
		"aliases":                {full("a: ", "*a "), "1:27004", "anchors, aliases and tags: want at most 9000"},
		"tags":                   {full("a: ", "!a "), "1:18004", "anchors, aliases and tags: want at most 9000"},
		"entries of nothing":     {full("", "-\n"), "3001:1", list},
		"entries with comments":  {full("", "- #\n"), "3001:1", list},
		"entries in brackets":    {full("[", "a,"), "1:6003", list},
		"commas":                 {full("[", ","), "1:3002", list},
		"pairs in braces":        {full("{", "a: b, "), "1:18006", list},
		"keys":                   {numbered("", "k%d: v\n"), "101:1", keys},
		"keys of a rule":         {numbered("rules:\n  - name: a\n", "    k%d: v\n"), "103:5", keys},
		"rules":                  {numbered("rules:\n", "  - name: r%d\n"), "3002:3", list},
		"a byte too many":        {strings.Repeat("#", MaxFileBytes+1), "1:1", "too large: want at most 524288 bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := Parse("rules.yml", []byte(c.text))
			if err == nil || !strings.HasPrefix(err.Error(), "rules.yml:"+c.at+": ") || !strings.Contains(err.Error(), c.want) {
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

// An alias stands for all that it names, and that is bounded too: 3,000 rules of
// 3,000 windows each are nine million from a file of 40 KB.
func TestAliasesAreBounded(t *testing.T) {
	text := "rules:\n  - name: a\n    match: a\n    alerts: &all [" + strings.TrimSuffix(strings.Repeat("1%, ", 3000), ", ") + "]\n    windows: [{limit: 1, per: 1s}]\n" +
		strings.Repeat("  - {name: a, match: a, windows: [{limit: 1, per: 1s}], alerts: *all}\n", 2999)
	_, err := Parse("rules.yml", []byte(text))
	if err == nil || !strings.Contains(err.Error(), "with all that aliases stand for: want at most 150000") {
		t.Fatalf("%.300v", err)
	}
}

// What people write is far within the bounds.
func TestTheLargestRulesAreTaken(t *testing.T) {
	var b strings.Builder
	for range 500 {
		b.WriteString("# a line that says why\n")
	}
	b.WriteString("rules:\n")
	for i := range MaxRules {
		fmt.Fprintf(&b, "  # the customer of contract %d\n- name: r%d\n  match: \"{tenant-%d}:*\"\n  windows: [{limit: 10, per: 1m}, {limit: 100, per: 1h}]\n  alerts:\n    - 80%%\n", i, i, i)
	}
	rules, err := Parse("rules.yml", []byte(b.String()))
	if err != nil || len(rules.List()) != MaxRules {
		t.Fatalf("%.300v", err)
	}
	if _, err := NewRules(append(rules.List(), &Rule{Name: "more", Match: "*", Windows: rules.List()[0].Windows})); err == nil || !strings.Contains(err.Error(), "3001 rules: want at most 3000") {
		t.Errorf("one more: %v", err)
	}
}

// A file without an end is not read to it.
func TestLoadReadsNoMoreThanItTakes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yml")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil { // sparse
		t.Skipf("no sparse files here: %v", err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Fatalf("%v", err)
	}
}

package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// asYAML writes rules independently of this package's parser.
func asYAML(rules []*Rule) []byte {
	var b strings.Builder
	b.WriteString("rules:\n")
	for _, r := range rules {
		fmt.Fprintf(&b, "  - name: %q\n    algorithm: %s\n    hold: %s\n", r.Name, r.Algorithm, r.Hold)
		fmt.Fprintf(&b, "    shadow: %t\n    on_error: %s\n    on_deny: %s\n    on_expire: %s\n", r.Shadow, r.OnError,
			r.OnDeny, r.OnExpire)
		if r.Match != "" {
			fmt.Fprintf(&b, "    match: '%s'\n", strings.ReplaceAll(r.Match, "'", "''"))
		}
		if r.Buckets != 0 {
			fmt.Fprintf(&b, "    buckets: %d\n", r.Buckets)
		}
		b.WriteString("    windows:\n")
		for _, w := range r.Windows {
			fmt.Fprintf(&b, "      - limit: %d\n        per: %s\n", w.Limit, w.Per)
		}
		if len(r.Alerts) > 0 {
			b.WriteString("    alerts: [")
			for _, pct := range r.Alerts {
				fmt.Fprintf(&b, "%d%%, ", pct)
			}
			b.WriteString("]\n")
		}
	}
	return []byte(b.String())
}

// FuzzParse: no text makes the parser panic, or return a very long error. Rules that
// it accepts are valid, and are the same if they are written and parsed again.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yml")
	if err != nil || len(files) < 50 {
		f.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{"[", "{", "- ", "? ", "&a [*a", "&a &a", "!a ", "*a ", "-\n", "a:\n", "k: v\n",
		"\"", "'", "|\n", ">\n x\n", "%a\n", "---\n", "<<: *a\n", "@", "\t", "\r", "\x00", "\xff", "#", "{? [a]: b}",
		"a: |\n b\n"} {
		f.Add([]byte(text))
		f.Add([]byte(strings.Repeat(text, 500)))
		f.Add([]byte("rules:\n  - " + strings.Repeat(text, 50)))
		f.Add([]byte("rules: [{name: a, match: a, windows: [{limit: 1, per: 1s}], alerts: " + text + "}]"))
	}
	place := regexp.MustCompile(`^rules\.yml:[1-9][0-9]*:[1-9][0-9]*: [^\n]`)
	f.Fuzz(func(t *testing.T, text []byte) {
		rules, err := Parse("rules.yml", text, WithoutHashKey) // it reads no file that the text names
		if err != nil {
			if rules != nil || !place.MatchString(err.Error()) || len(err.Error()) > 8000 {
				t.Fatalf("an error of %d bytes: %.200v", len(err.Error()), err)
			}
			return
		}
		for _, r := range rules.List() {
			if f := r.validate(); f != nil {
				t.Fatalf("%+v: %s", r, f.msg)
			}
			rules.Match(r.Match) // whatever it is, it ends
		}
		again, err := Parse("rules.yml", asYAML(rules.List()))
		if err != nil {
			t.Fatalf("%s\n%v", asYAML(rules.List()), err)
		}
		if diff := cmp.Diff(rules.List(), again.List()); diff != "" {
			t.Fatal(diff)
		}
	})
}

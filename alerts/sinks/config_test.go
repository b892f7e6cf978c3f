package sinks_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const good = "name: a, type: webhook, url: https://example.com/x, secret_file: secret"

// The error for each mistake has its place and what is expected, and shows nothing of the file. The files that a sink
// names are beside the file. testdata/mistakes.golden has the fields of each sink, where GOOD is a good one, LONG a
// text of 5,000 bytes and SECRET a secret, with the error below it; -update writes the errors.
func TestMistakesInAFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"secret": secret, "short": "whsec_AAAA", "plain": "secret",
		"empty": "", "ca": "no certificate", "url": "https://example.com/x", "nourl": "example.com"} {
		rewrite(t, filepath.Join(dir, name), text)
	}
	const path = "testdata/mistakes.golden"
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	out, file := "", filepath.Join(dir, "sinks.yml")
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		sink := strings.NewReplacer("GOOD", good, "SECRET", secret, "LONG", strings.Repeat("x", 5000), `\n`, "\n").
			Replace(strings.TrimSpace(line))
		rewrite(t, file, "sinks:\n  - {"+sink+"}\n")
		_, err := sinks.Open(file, nil)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Fatalf("%s: %v", line, err)
		}
		out += line + "  " + strings.ReplaceAll(err.Error(), dir+"/", "") + "\n"
	}
	testkit.Golden(t, path, out)
}

package sinks_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The error for each mistake has its place and what is expected, and shows nothing of the file.
func TestMistakesInAFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"secret": secret, "short": "whsec_AAAA", "plain": "secret",
		"empty": "", "ca": "no certificate", "url": "https://example.com/x", "nourl": "example.com"} {
		rewrite(t, filepath.Join(dir, name), text)
	}
	const good = "name: a, type: webhook, url: https://example.com/x, secret_file: secret"
	for _, x := range []struct{ sink, want string }{
		{"name: A b, type: webhook", "2:12: name: want 1 to 32 of a-z, 0-9 and -"},
		{"name: a, type: pager", "2:21: type of sink a: want webhook, alertmanager or slack"},
		{"type: slack", "2:5: name is missing"},
		{"name: a, type: slack", "url or url_file"},
		{"name: a, type: slack, url: https://e.com, url_file: url", "url or url_file"},
		{"name: a, type: slack, url: ftp://e.com", "2:33: url of sink a: want https://"},
		{"name: a, type: slack, url: 'https://u:p@e.com'", "name or a password"},
		{"name: a, type: slack, url: 'https://e.com/#x'", "fragment"},
		{"name: a, type: slack, url_file: nourl", "url_file of sink a: want https://"},
		{"name: a, type: slack, url_file: none", "2:38: url_file of sink a: no such file"},
		{"name: a, type: slack, url: 'https://:443/x'", "want https://HOST"},
		{"name: a, type: slack, url: 'https://e.com:99999/x'", "bad port"},
		{"name: a, type: alertmanager, url: https://e.com/am/api/v2/alerts", "without /api/v2/alerts"},
		{"name: a, type: webhook, url: https://e.com, secret_file: " + secret,
			"2:63: secret_file of sink a: no such file"},
		{"name: a, type: webhook, url: https://e.com, secret_file: /", "2:63: secret_file of sink a: is a directory"},
		{"name: a, type: webhook, url: https://e.com", "want secret_file"},
		{"name: a, type: webhook, url: https://e.com, secret_file: short", "secret_file of sink a: want whsec_"},
		{"name: a, type: webhook, url: https://e.com, secret_file: plain", "want whsec_"},
		{"name: a, type: webhook, url: https://e.com, secret_file: empty", "1 to 3 secrets"},
		{"name: a, type: slack, url: https://e.com, secret_file: secret", "only a sink of type webhook signs"},
		{"name: a, type: slack, url: https://e.com, token_file: secret", "want url_file"},
		{"name: a, type: alertmanager, url: https://e.com, send_resolved: false", "Alertmanager needs resolved alerts"},
		{good + ", resolve_after: 1m", "only a sink of type alertmanager"},
		{"name: a, type: alertmanager, url: https://e.com, resolve_after: 1s", "it is 1s: want 20s to 1d"},
		{good + ", timeout: 2m", "it is 2m: want 100ms to 1m"},
		{good + ", give_up: 8d", "it is 8d: want 1s to 6d"},
		{good + ", token_file: empty", "one token"},
		{good + ", ca_file: ca", "CA certificates"},
		{good + ", rules: []", "1 to 100 patterns"},
		{good + `, keys: ['a\']`, "lone"},
		{good + ", levels: [0]", "levels[0] 0: want a whole number from 1 to 100"},
		{good + ", levels: [1234567]", "levels[0] is something else: want a whole number from 1 to 100"},
		{"name: a, type: webhok, url: https://e.com", `type of sink a: it is "webhok": want webhook, alertmanager or`},
		{"name: a, type: " + secret + ", url: https://e.com", "type of sink a: want webhook, alertmanager or slack"},
		{good + ", levels: []", "want some of"},
		{good + ", text: '{{.Kye}}'", "Kye"},
		{good + ", text: '{{range 9}}{{end}}'", "has a range"},
		{good + ", text: '{{if .Raised}}{{range 9}}{{end}}{{end}}'", "has a range"},
		{good + `, text: '{{define "x"}}{{template "x"}}{{end}}{{template "x"}}'`, "template"},
		{good + ", text: '{{'", "text of sink a"},
		{good + ", text: '" + strings.Repeat("x", 5000) + "'", "at most 4096"},
		{good + ", hope: 1", "unknown field"},
		{good + "}\n  - {name: a, type: slack", "3:12: the name a is taken in line 2"},
	} {
		text := x.sink
		for _, name := range []string{"secret", "short", "plain", "empty", "ca", "url", "nourl", "none"} {
			text = strings.ReplaceAll(text, "_file: "+name, "_file: "+filepath.Join(dir, name))
		}
		path := testkit.WriteFile(t, "sinks.yml", "sinks:\n  - {"+text+"}\n")
		_, err := sinks.Open(path, nil)
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %s", x.sink, err, x.want)
		}
	}
}

// A text that is too long is cut. If a text fails with some alerts, the default text is used.
func TestTexts(t *testing.T) {
	r := newReceiver(t)
	path := testkit.WriteFile(t, "secret", secret)
	list := ""
	for i, text := range []string{`{{printf "%9999d" 1}}`, `{{slice .Key 0 10}}`, `{{.At.Format "2006"}} {{.State}}`} {
		list += fmt.Sprintf("  - {name: s%d, type: webhook, url: %q, secret_file: %s, text: '%s'}\n", i, r.URL,
			path, text)
	}
	file, err := sinks.Open(testkit.WriteFile(t, "sinks.yml", "sinks:\n"+list), nil)
	testkit.Must(t, err)
	for _, s := range file.Value() {
		testkit.Must(t, s.SendSample(t.Context(), "sc"))
	}
	if len(r.texts[0]) != 4096 || r.texts[1] != "sample:key" || !strings.HasSuffix(r.texts[2], " raised") {
		t.Errorf("%d bytes, %q", len(r.texts[0]), r.texts[1:])
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

const (
	settingsPage = "../../docs/settings.md"
	metricsPage  = "../../docs/metrics.md"
)

// The table of settings in the docs is the one in config.go.
func TestSettingsAreDocumented(t *testing.T) {
	testkit.Section(t, settingsPage, "settings", settingsTable())
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| flag | environment | default | meaning |\n|---|---|---|---|\n")
	for _, g := range newConfig().groups {
		for _, s := range g.settings {
			def := ""
			if value := shown(s.field); value != "" && value != "0s" {
				def = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", s.name, envName(s.name), def, s.usage)
		}
	}
	return b.String()
}

// The address of each transport is a setting of that name, and each is told of once.
func TestTransportsAreSettings(t *testing.T) {
	c := newConfig()
	for _, x := range transports {
		field, ok := c.find(x.name)[0].field.(*string)
		for _, s := range c.find(x.name) {
			if s.name == x.name {
				field, ok = s.field.(*string)
			}
		}
		if !ok || *field != x.addr(c) || x.title == "" || x.about == "" {
			t.Errorf("%s: the setting is not the address %q", x.name, x.addr(c))
		}
	}
}

// Each metric is in the docs with its labels, and no other is.
func TestMetricsAreDocumented(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `(streamcounter_[a-z_]+)` \\| [a-z]+ \\|([^|]*)\\|")
	documented := map[string]string{} // name → labels
	for _, m := range row.FindAllStringSubmatch(readPage(t, metricsPage), -1) {
		documented[m[1]] = strings.NewReplacer("`", "", " ", "").Replace(m[2])
	}
	for name, labels := range registeredMetrics(t) {
		have, ok := documented[name]
		if !ok || have != labels {
			t.Errorf("%s has %s with the labels %q (found: %t), want %q", metricsPage, name, have, ok, labels)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("%s has %s, which nothing counts", metricsPage, name)
	}
}

// registeredMetrics gives name → labels of all that serve and work register.
func registeredMetrics(t *testing.T) map[string]string {
	t.Helper()
	example, err := windows.Parse("example", exampleRules)
	testkit.Must(t, err)
	n := newNode("serve", newConfig(), windows.Fixed(example), slog.New(slog.DiscardHandler))
	consumers.NewMetrics(n.registry)
	check.NewMetrics(n.registry)
	httpapi.NewMetrics(n.registry)
	sinks.NewMetrics(n.registry)
	natsMetrics(n.registry, &natsconn.Status{})
	n.announcer()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var running sync.WaitGroup
	n.followRules(ctx, &running)
	if _, err := access.NewTokens(testkit.WriteFile(t, "tokens.yml",
		"tokens: [{name: a, token: a-token-0123456789, scopes: [read]}]"), n.registry, nil); err != nil {
		t.Fatal(err)
	}
	n.followFiles(ctx, &running)
	running.Wait()

	descriptions := make(chan *prometheus.Desc)
	go func() {
		n.registry.Describe(descriptions)
		close(descriptions)
	}()
	form := regexp.MustCompile(`fqName: "(streamcounter_[^"]*)".*variableLabels: \{([^}]*)\}`)
	out := map[string]string{}
	for d := range descriptions {
		if m := form.FindStringSubmatch(d.String()); m != nil {
			out[m[1]] = m[2]
		}
	}
	if len(out) == 0 {
		t.Fatal("no metric was found")
	}
	return out
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	return string(text)
}

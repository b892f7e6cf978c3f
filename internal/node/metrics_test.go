package node

import (
	"log/slog"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamcounter/streamcounter/alerts/sinks"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/check/httpapi"
	"github.com/streamcounter/streamcounter/consumers"
	"github.com/streamcounter/streamcounter/internal/counters"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

const (
	metricsPage = "../../docs/metrics.md"
	someRules   = `rules: [{name: api, match: "user:*", windows: [{limit: 10, per: 1m}]}]`
)

// The docs list exactly the registered metrics, with their labels.
func TestMetricsAreDocumented(t *testing.T) {
	documented := testkit.DocumentedMetrics(t, metricsPage)
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

// registeredMetrics returns name → labels of all metrics that serve and work register.
func registeredMetrics(t *testing.T) map[string]string {
	t.Helper()
	example, err := windows.Parse("example", []byte(someRules))
	testkit.Must(t, err)
	n := newNode(Config{Settings: settings.New()}, windows.Fixed(example), slog.New(slog.DiscardHandler))
	counters.New(nil, nil).ReportCorrupt(n.registry, n.log)
	consumers.NewMetrics(n.registry)
	check.NewMetrics(n.registry)
	httpapi.NewMetrics(n.registry)
	sinks.NewMetrics(n.registry)
	natsMetrics(n.registry, &natsconn.Status{})
	n.redisMetrics()
	n.announcer()
	n.followRules(t.Context(), nil)
	if _, err := access.NewTokens(testkit.WriteFile(t, "tokens.yml",
		"tokens: [{name: a, token: a-token-0123456789, scopes: [read]}]"), n.registry, nil); err != nil {
		t.Fatal(err)
	}
	n.followFiles()

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

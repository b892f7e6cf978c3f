package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// dashboardQuery is a query of a panel, with Grafana's variables set to everything.
type dashboardQuery struct{ panel, expr string }

// dashboardQueries returns the queries of the panels and of the variables.
func dashboardQueries(t *testing.T) []dashboardQuery {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "grafana-dashboard.json"))
	testkit.Must(t, err)
	var dashboard struct {
		Panels []struct {
			Title, Type string
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	testkit.Must(t, json.Unmarshal(text, &dashboard))
	grafana := strings.NewReplacer("$__rate_interval", "10s", "$job", ".+", "$instance", ".+")
	var out []dashboardQuery
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			out = append(out, dashboardQuery{p.Title, grafana.Replace(target.Expr)})
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" {
			m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(v.Definition)
			if m == nil {
				t.Fatalf("the variable %s asks for %q", v.Name, v.Definition)
			}
			out = append(out, dashboardQuery{"variable " + v.Name,
				fmt.Sprintf("count by (%s) (%s)", m[2], grafana.Replace(m[1]))})
		}
	}
	for _, q := range out {
		if strings.Contains(q.expr, "$") {
			t.Errorf("%s asks with a variable that the dashboard has not: %s", q.panel, q.expr)
		}
	}
	return out
}

// The dashboard shows each metric of the docs (the metrics that serve and work register, internal/node), and queries
// no other.
func TestDashboardShowsEachMetric(t *testing.T) {
	documented := testkit.DocumentedMetrics(t, "../../docs/metrics.md")
	shown := map[string]bool{}
	for _, q := range dashboardQueries(t) {
		for _, name := range regexp.MustCompile(`\bstreamcounter_\w+`).FindAllString(q.expr, -1) {
			name = strings.TrimSuffix(name, "_bucket") // of a histogram
			if _, ok := documented[name]; !ok {
				t.Errorf("%s asks for %s, which nothing counts", q.panel, name)
			}
			shown[name] = true
		}
	}
	for name := range documented {
		if !shown[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// busyPanels are the panels that show values above zero for a dev under load.
var busyPanels = []string{"Checks by outcome", "Checks by rule", "Denied share by rule", "Time that a check takes",
	"Deliveries of alert sinks",
	"Denied from memory", "Decisions and alerts published", "Events per fold", "Requests refused for want of rights",
	"Processes up", "Version of each process", "Memory"}

// A Prometheus that scrapes a dev under load has data for each query of the dashboard, with values above zero where
// the load causes them.
func TestDashboardQueriesHaveData(t *testing.T) {
	t.Parallel()
	program := streamtest.Program(t, "prometheus")
	tokens := strings.Replace(accessTokens, "[check]", "[check, append]", 1)
	d := startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", devRulesText),
		"--tokens", testkit.WriteFile(t, "tokens.yml", tokens), "--sinks", testkit.WriteFile(t, "sinks.yml",
			"sinks: [{name: chat, type: slack, url: \"http://127.0.0.1:1\"}]"))
	p := startPrometheus(t, program, d.at)
	left := dashboardQueries(t)
	for _, panel := range busyPanels {
		if !slices.ContainsFunc(left, func(q dashboardQuery) bool { return q.panel == panel }) {
			t.Errorf("the dashboard has no panel %q", panel)
		}
	}
	round := 0
	streamtest.Eventually(t, "each query has data", func() (bool, string) {
		round++
		d.load(t, fmt.Sprintf("user:round-%d", round))
		var why []string
		left = slices.DeleteFunc(left, func(q dashboardQuery) bool {
			lacks := p.lacks(t, q.expr, slices.Contains(busyPanels, q.panel))
			if lacks != "" {
				why = append(why, fmt.Sprintf("%s: %s: %s", q.panel, q.expr, lacks))
			}
			return lacks == ""
		})
		return len(left) == 0, strings.Join(why, "\n")
	})
}

// load sends checks that are admitted, denied and without a token, and events that take key over its limit. Pass a
// new key each time: a key that is over its limit already causes no further decision.
func (d *devServer) load(t *testing.T, key string) {
	t.Helper()
	for _, path := range []string{"/v1/check?key=user:42&cost=30", "/v1/check?key=user:7", "/v1/events"} {
		for _, token := range []string{checkerToken, ""} {
			method, body := http.MethodGet, ""
			if path == "/v1/events" {
				method, body = http.MethodPost, fmt.Sprintf(`[{"key":%q,"count":120}]`, key)
			}
			resp, _ := call(t, http.DefaultClient, method, d.url()+path, body,
				"Content-Type: application/json", "Authorization: Bearer "+token)
			if token != "" && resp.StatusCode >= 400 && resp.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("%s %s: %s", method, path, resp.Status)
			}
		}
	}
}

type prometheusServer struct{ base string }

// startPrometheus runs a Prometheus that scrapes target twice a second, until the test ends.
func startPrometheus(t *testing.T, program, target string) prometheusServer {
	t.Helper()
	config := testkit.WriteFile(t, "prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 500ms}
scrape_configs:
  - job_name: streamcounter
    authorization: {credentials: %s}
    static_configs: [{targets: [%q]}]
`, readerToken, target))
	p := streamtest.ServeHTTP(t, program, "/-/ready", "--config.file="+config, "--storage.tsdb.path=.",
		"--web.listen-address=ADDR")
	return prometheusServer{"http://" + p.Addr()}
}

// lacks returns why a query has no data to draw, or "" if it has data. If the panel must be busy, zero counts as no
// data.
func (p prometheusServer) lacks(t *testing.T, expr string, busy bool) string {
	t.Helper()
	code, body := request(t, "GET", p.base+"/api/v1/query?query="+url.QueryEscape(expr), "")
	var answer struct {
		Status string
		Data   struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %d %v\n%s", expr, code, err, body)
	}
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" && (r.Value[1] != "0" || !busy) {
			return ""
		}
	}
	return fmt.Sprintf("%d series, none with such a number", len(answer.Data.Result))
}

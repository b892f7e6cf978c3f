package deploy_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v4"

	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

func TestRulesLoad(t *testing.T) {
	if _, err := windows.Load("rules.yml"); err != nil {
		t.Error(err)
	}
}

func TestTokensLoad(t *testing.T) {
	tokens, err := access.NewTokens("tokens.example.yml", prometheus.NewRegistry(), nil)
	testkit.Must(t, err)
	// Nobody can get in with what anybody can read here.
	for _, line := range strings.Fields(read(t, "tokens.example.yml")) {
		if err := tokens.Allow(strings.Trim(line, `"`), access.ScopeAny); err == nil {
			t.Errorf("%s is a token", line)
		}
	}
}

type service struct {
	Environment map[string]string
	Ports       []string
	MemLimit    string `yaml:"mem_limit"`
	PidsLimit   int    `yaml:"pids_limit"`
	Image       string
}

// composed returns the services of docker-compose.yml.
func composed(t *testing.T) map[string]service {
	t.Helper()
	var compose struct{ Services map[string]service }
	testkit.Must(t, yaml.Unmarshal([]byte(read(t, "docker-compose.yml")), &compose))
	return compose.Services
}

// A container listens on all its addresses, so it must say who may come in.
func TestComposeSaysWhoMayComeIn(t *testing.T) {
	services := composed(t)
	for _, name := range []string{"serve", "work1", "work2"} {
		env := services[name].Environment
		if !strings.HasPrefix(env["STREAMCOUNTER_HTTP"], "0.0.0.0:") ||
			(env["STREAMCOUNTER_OPEN"] == "true") == (env["STREAMCOUNTER_TOKENS"] != "") {
			t.Errorf("%s has %v, want STREAMCOUNTER_OPEN or STREAMCOUNTER_TOKENS", name, env)
		}
	}
	serve := services["serve"]
	if grpc := serve.Environment["STREAMCOUNTER_GRPC"]; grpc != "0.0.0.0:8082" ||
		!slices.Contains(serve.Ports, "127.0.0.1:${GRPC_PORT:-8082}:8082") {
		t.Errorf("gRPC listens on %q, and the ports are %v", grpc, serve.Ports)
	}
	for name, service := range services {
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond loopback", name, port)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	testkit.Must(t, err)
	return string(text)
}

// Redis takes every setting of redis.conf, and has it afterwards.
func TestRedisTakesItsConfiguration(t *testing.T) {
	var args []string
	want := map[string]string{}
	for line := range strings.Lines(read(t, "redis.conf")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" || name[0] == '#' || name == "dir" { // the test's own directory serves
			continue
		}
		want[name] = strings.Trim(value, `"`)
		args = append(append(args, "--"+name), strings.Fields(want[name])...)
		if want[name] == "" {
			args = append(args, "")
		}
	}
	if want["stream-node-max-bytes"] != "512" || want["maxmemory-policy"] != "noeviction" ||
		want["appendonly"] != "yes" {
		t.Errorf("redis.conf says %v, want stream-node-max-bytes 512, maxmemory-policy noeviction, appendonly yes",
			want)
	}

	c := streamtest.Connect(t, streamtest.OwnRedis(t, args...).URL())
	for name, value := range want {
		if got, err := c.ConfigGet(t.Context(), name).Result(); err != nil || got[name] != value {
			t.Errorf("Redis has %s %q, %v; want %q", name, got[name], err, value)
		}
	}
}

// promtool takes the configuration of Prometheus, and each alert fires where it should
// and nowhere else. No alert is without such a test.
func TestAlertsFire(t *testing.T) {
	promtool := streamtest.Program(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", "--syntax-only", "prometheus.yml"},
		{"check", "rules", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	tests := read(t, "alerts_test.yml")
	names := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(read(t, "alerts.yml"), -1)
	for _, name := range names {
		fires := strings.Contains(tests, `alertname="`+name[1]+`"`)
		if quiet := strings.Contains(tests, "alertname: "+name[1]+"}"); !fires || !quiet {
			t.Errorf("%s: tested that it fires %t, and that it is quiet %t", name[1], fires, quiet)
		}
	}
}

// The chart has a copy, as Helm reads no file outside of it.
func TestTheChartsAlertsAreThese(t *testing.T) {
	if read(t, "alerts.yml") != read(t, "helm/streamcounter/files/alerts.yml") {
		t.Error("they differ: cp deploy/alerts.yml deploy/helm/streamcounter/files/alerts.yml")
	}
}

// Each alert links to its section in the runbook, which says what it means, what to look at and what to do.
func TestAlertsAreInTheRunbook(t *testing.T) {
	const runbook = "https://github.com/streamcounter/streamcounter/blob/main/docs/runbook.md#"
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	testkit.Must(t, yaml.Unmarshal([]byte(read(t, "alerts.yml")), &file))
	sections := map[string]string{}
	for section := range strings.SplitSeq(read(t, "../docs/runbook.md"), "\n### ") {
		title, body, _ := strings.Cut(section, "\n")
		sections[title], _, _ = strings.Cut(body, "\n## ")
	}
	alerts := map[string]bool{}
	for _, rule := range file.Groups[0].Rules {
		alerts[rule.Alert] = true
		if want := runbook + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %s", rule.Alert, rule.Annotations["runbook_url"], want)
		}
		for _, part := range []string{"**Means**: ", "**Look**: ", "**Do**: "} {
			if !strings.Contains(sections[rule.Alert], part) {
				t.Errorf("docs/runbook.md has no section %s with %s", rule.Alert, part)
			}
		}
	}
	for title := range sections {
		if strings.HasPrefix(title, "Streamcounter") && !alerts[title] {
			t.Errorf("docs/runbook.md has a section %s, which is no alert", title)
		}
	}
}

// A metric that was renamed would leave its alert silent forever. internal/node proves that the docs list each metric.
func TestAlertsNameMetricsThatExist(t *testing.T) {
	known := testkit.DocumentedMetrics(t, "../docs/metrics.md")
	names := regexp.MustCompile(`streamcounter(_[a-z]+)+`).FindAllString(read(t, "alerts.yml"), -1)
	if len(names) == 0 {
		t.Fatal("alerts.yml names no metric")
	}
	for _, name := range names {
		if _, ok := known[strings.TrimSuffix(name, "_bucket")]; !ok {
			t.Errorf("alerts.yml asks for %s, which nothing counts", name)
		}
	}
}

// Every container has bounds, and Redis room to rewrite its append-only file.
func TestComposeHasBounds(t *testing.T) {
	services := composed(t)
	if len(services) < 6 {
		t.Fatalf("%d services", len(services))
	}
	for name, s := range services {
		if s.MemLimit == "" || s.PidsLimit == 0 {
			t.Errorf("%s: mem_limit %q, pids_limit %d: want both", name, s.MemLimit, s.PidsLimit)
		}
		if exact := regexp.MustCompile(`:(local|[a-z0-9.-]+@sha256:[0-9a-f]{64})\}$`); !exact.MatchString(s.Image) {
			t.Errorf("%s: image %s, want one that is built here, or a tag and its digest", name, s.Image)
		}
	}
	if conf := read(t, "redis.conf"); !strings.Contains(conf, "\nmaxmemory 536870912\n") ||
		services["redis"].MemLimit != "1g" {
		t.Errorf("redis: mem_limit %s, want twice the maxmemory of redis.conf", services["redis"].MemLimit)
	}
}

// The chart, whose own test runs where it changes, and the units of systemd set what the program knows.
func TestEverySettingIsOne(t *testing.T) {
	known := read(t, "../docs/settings.md")
	setting := regexp.MustCompile(`(?m)(?:name: |^Environment=)(STREAMCOUNTER_\w+)[,\s=]`)
	names := 0
	for _, pattern := range []string{"helm/streamcounter/templates/*", "kubernetes.yaml", "systemd/*.service"} {
		files, err := filepath.Glob(pattern)
		testkit.Must(t, err)
		for _, file := range files {
			for _, m := range setting.FindAllStringSubmatch(read(t, file), -1) {
				if names++; !strings.Contains(known, "`"+strings.TrimSuffix(m[1], "_FILE")+"`") {
					t.Errorf("%s: %s is not a setting", file, m[1])
				}
			}
		}
	}
	if names < 30 {
		t.Errorf("%d settings found", names)
	}
}

// The rules and extractors of the chart's values files and of kubernetes.yaml load.
func TestChartRulesLoad(t *testing.T) {
	files, err := filepath.Glob("helm/streamcounter/ci/*-values.yaml")
	testkit.Must(t, err)
	if len(files) < 5 {
		t.Fatalf("values files: %v", files)
	}
	for _, file := range files {
		var values struct{ Rules []map[string]any }
		testkit.Must(t, yaml.Unmarshal([]byte(read(t, file)), &values))
		if len(values.Rules) == 0 {
			continue // from elsewhere
		}
		rules, err := yaml.Marshal(map[string]any{"rules": values.Rules})
		testkit.Must(t, err)
		if _, err := windows.Load(testkit.WriteFile(t, "rules.yml", string(rules))); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// systemd takes the units as they are, and finds little that they could still do without.
func TestSystemdUnits(t *testing.T) {
	analyze := streamtest.Program(t, "systemd-analyze")
	units, err := filepath.Glob("systemd/*.service")
	testkit.Must(t, err)
	if len(units) != 2 {
		t.Fatalf("units: %v", units)
	}
	for _, unit := range units {
		// verify wants the program to be there.
		text := strings.Replace(read(t, unit), "/usr/local/bin/streamcounter", "/bin/true", 1)
		if text == read(t, unit) {
			t.Errorf("%s does not start /usr/local/bin/streamcounter", unit)
		}
		file := testkit.WriteFile(t, filepath.Base(unit), text)
		for _, args := range [][]string{
			{"verify", "--man=no", file},
			{"security", "--offline=true", "--threshold=20", "--no-pager", file}, // of 100
		} {
			out, err := exec.Command(analyze, args...).CombinedOutput()
			// verify warns of what it does not know, and exits with 0.
			if err != nil || strings.Contains(string(out), file) && args[0] == "verify" {
				t.Errorf("systemd-analyze %v: %v\n%s", args, err, out)
			}
		}
	}
}

// Grafana can import the dashboard as it is: its data source is a variable, each panel has
// a place of its own, and says in a sentence what it shows and in which unit.
// That its queries give data is tested in cmd/streamcounter.
func TestDashboardCanBeImported(t *testing.T) {
	type source struct{ Type, UID string }
	type place struct{ X, Y, W, H int }
	var dashboard struct {
		ID            *int
		UID, Title    string
		SchemaVersion int
		Templating    struct{ List []struct{ Name, Type string } }
		Panels        []struct {
			ID                       int
			Type, Title, Description string
			Datasource               source
			GridPos                  place
			FieldConfig              struct{ Defaults struct{ Unit string } }
			Targets                  []struct {
				RefID, Expr string
				Datasource  source
			}
		}
	}
	testkit.Must(t, json.Unmarshal([]byte(read(t, "grafana-dashboard.json")), &dashboard))
	var variables []string
	for _, v := range dashboard.Templating.List {
		variables = append(variables, v.Name+" "+v.Type)
	}
	if dashboard.ID != nil || dashboard.UID == "" || dashboard.Title == "" || dashboard.SchemaVersion != 38 ||
		!slices.Equal(variables, []string{"datasource datasource", "job query", "instance query"}) {
		t.Errorf("id %v, uid %q, title %q, schema %d, variables %v", dashboard.ID, dashboard.UID, dashboard.Title,
			dashboard.SchemaVersion, variables)
	}
	want := source{"prometheus", "${datasource}"}
	for i, p := range dashboard.Panels {
		for _, other := range dashboard.Panels[:i] {
			a, b := p.GridPos, other.GridPos
			if p.ID == other.ID || p.Title == other.Title ||
				a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q and %q have one place, id or title", p.Title, other.Title)
			}
		}
		if p.GridPos.W < 1 || p.GridPos.H < 1 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%q lies at %+v", p.Title, p.GridPos)
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource != want || len(p.Targets) == 0 {
			t.Errorf("%q lacks a description, a unit, the data source or a query", p.Title)
		}
		for _, target := range p.Targets {
			if target.RefID == "" || target.Expr == "" || target.Datasource != want {
				t.Errorf("%q has the query %+v", p.Title, target)
			}
		}
	}
	if len(dashboard.Panels) < 30 {
		t.Errorf("%d panels", len(dashboard.Panels))
	}
}

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

const chart = "../../deploy/helm/streamcounter/"

// chartSets are the settings that other values of the Helm chart than `settings` set, or that no pod needs.
var chartSets = strings.Fields(`redis redis-ca redis-cert redis-key nats nats-creds nats-nkey nats-ca nats-cert
	nats-key nats-store rules rls-config http health grpc tokens tls-cert tls-key tls-client-ca open extractors
	drain-timeout help`)

// `settings` of the Helm chart accepts every other setting of serve and work, and no unknown name.
func TestChartSettingsAreDocumented(t *testing.T) {
	const begin = `"settings": {
      "type": "object",
      "additionalProperties": false,
      "properties": {
`
	const end = "\n      }\n    },"
	b, err := os.ReadFile(chart + "values.schema.json")
	testkit.Must(t, err)
	before, rest, ok := strings.Cut(string(b), begin)
	have, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("values.schema.json has no %s … %s", begin, end)
	}
	var names []string
	for _, flags := range []*pflag.FlagSet{newServe().Flags(), newWork().Flags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(chartSets, f.Name) && !slices.Contains(names, f.Name) {
				names = append(names, f.Name)
			}
		})
	}
	slices.Sort(names)
	const indent, is = `        "`, `": {"$ref": "#/$defs/setting"}`
	want := indent + strings.Join(names, is+",\n"+indent) + is
	if have == want {
		return
	}
	if *testkit.Update {
		testkit.Must(t, os.WriteFile(chart+"values.schema.json", []byte(before+begin+want+end+after), 0o644))
		return
	}
	t.Errorf("the names of settings in the chart's values.schema.json are not those of internal/settings (go test "+
		"./cmd/streamcounter -run Documented -update writes them)\nhave:\n%s\nwant:\n%s", have, want)
}

// The chart installs this version.
func TestChartHasTheVersion(t *testing.T) {
	b, err := os.ReadFile(chart + "Chart.yaml")
	testkit.Must(t, err)
	for _, line := range []string{"\nversion: " + version + "\n", "\nappVersion: \"" + version + "\" "} {
		if !strings.Contains(string(b), line) {
			t.Errorf("Chart.yaml has no line %q", strings.TrimSpace(line))
		}
	}
}

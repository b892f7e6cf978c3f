package chart_test

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// A mistake in the values is an error that names its place.
func TestMistakesInValues(t *testing.T) {
	const good = "redis: {url: x}\nnats: {url: x}\naccess: {open: true}\nrules: [{name: a}]\n"
	for _, x := range []struct{ values, want string }{
		{good + "replicas: 3", "replicas"},
		{good + "serve: {replica: 3}", "replica"},
		{good + "serve: {replicas: many}", "serve/replicas"},
		{good + "serve: {autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 3}}", "minReplicas is above"},
		{good + "serve: {resources: {request: {cpu: 1}}}", "request"},
		{good + "settings: {check-timout: 1s}", "at '/settings'"},
		{good + "settings: {redis: x}", "at '/settings'"},
		{good + "env: {STREAMCOUNTER_REDIS: x}", "STREAMCOUNTER_REDIS"},
		{good + "image: {digest: latest}", "image/digest"},
		{good + "rlsConfig: {a: {domain: x}}", "rlsConfig"},
		{good + "networkPolicy: {egress: {redis: {port: 0}}}", "port"},
		{"nats: {url: x}\naccess: {open: true}\nrules: [{name: a}]", "redis: give url or existingSecret"},
		{"redis: {url: x}\naccess: {open: true}\nrules: [{name: a}]", "nats: give url or existingSecret"},
		{"redis: {url: x}\nnats: {url: x}\nrules: [{name: a}]", "access: give tokens"},
		{"redis: {url: x}\nnats: {url: x}\naccess: {open: true}", "give rules, existingRulesConfigMap or rlsConfig"},
		{"redis: {url: x, existingSecret: other}\nnats: {url: x}\naccess: {open: true}\nrules: [{name: a}]",
			"not both"},
		{"redis: {url: x}\nnats: {url: x, credsKey: other}\naccess: {open: true}\nrules: [{name: a}]", "nats.credsKey"},
		{"redis: {url: x}\nnats: {url: x}\naccess: {clientCA: true}\nrules: [{name: a}]", "needs access.tlsSecret"},
		{"redis: {url: x}\nnats: {url: x}\naccess: {open: true, existingSecret: other}\nrules: [{name: a}]",
			"access.open"},
		{"redis: {url: x}\nnats: {url: x}\naccess: {tokens: [{name: a, token: short, scopes: [check]}]}", "tokens/0"},
		{"redis: {url: x}\nnats: {url: x}\naccess: {tokens: [{name: a, scopes: [check]}]}", "tokens/0"},
	} {
		values := map[string]any{}
		must(t, yaml.UnmarshalStrict([]byte(x.values), &values))
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s\ngives %v, want %s", x.values, err, x.want)
		}
	}
	values := map[string]any{}
	must(t, yaml.UnmarshalStrict([]byte(good), &values))
	_, err := render(values)
	must(t, err)
}

// No object of the values takes a name that nobody reads.
func TestSchemaIsStrict(t *testing.T) {
	b, err := os.ReadFile(chartDir + "/values.schema.json")
	must(t, err)
	var schema map[string]any
	must(t, yaml.UnmarshalStrict(b, &schema))
	objects := 0
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch v := value.(type) {
		case map[string]any:
			if _, ok := v["properties"].(map[string]any); ok && v["type"] == "object" {
				objects++
				if v["additionalProperties"] != false {
					t.Errorf("%s takes any name", path)
				}
			}
			for name, inner := range v {
				walk(path+"/"+name, inner)
			}
		case []any:
			for _, inner := range v {
				walk(path, inner)
			}
		}
	}
	walk("", schema)
	if objects < 15 {
		t.Errorf("the schema has %d objects", objects)
	}
}

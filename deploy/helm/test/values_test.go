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
		// The chart has these for serve and work alone.
		{"redis: {url: x}\nratelimit: {enabled: true}\nnetworkPolicy: {enabled: true}", "no NetworkPolicy for ratelimit"},
		{"redis: {url: x}\nratelimit: {enabled: true}\nserve: {autoscaling: {enabled: true}}", "no autoscaler for ratelimit"},
		// The API server would refuse these.
		{good + "serve: {service: {headless: true, type: LoadBalancer}}", "headless goes with type ClusterIP"},
		{good + "serve: {service: {headless: true, type: NodePort}}", "headless goes with type ClusterIP"},
		{good + "nameOverride: Limits", "nameOverride"},
		{good + "nameOverride: my_limits", "nameOverride"},
		{good + "fullnameOverride: my_limits", "fullnameOverride"},
		{good + "fullnameOverride: 1limits", "fullnameOverride"},
		{good + "existingRulesConfigMap: a..b", "existingRulesConfigMap"},
		{good + "serviceAccountName: Limits", "serviceAccountName"},
		{good + "serve: {podDisruptionBudget: {maxUnavailable: 250%}}", "maxUnavailable"},
		{good + "env: {GOMEMLIMIT: 1GiB}", "GOMEMLIMIT"},
		{good + "work: {podLabels: {app.kubernetes.io/name: x}}", "app.kubernetes.io/name"},
		{good + "serve: {podLabels: {helm.sh/chart: x}}", "helm.sh/chart"},
		{good + "serve: {podLabels: {team: a b}}", "podLabels/team"},
		{good + "serve: {podLabels: {'a b': x}}", "'a b'"},
		{good + "serve: {podAnnotations: {checksum/servers: x}}", "checksum/servers"},
		{good + "serviceMonitor: {labels: {app.kubernetes.io/instance: x}}", "app.kubernetes.io/instance"},
		{good + "serve: {resources: {limits: {memory: 1 GB}}}", "limits/memory"},
		{good + "serve: {resources: {limits: {cpus: 1}}}", "cpus"},
		{good + "serve: {topologySpread: {keys: [zone, zone]}}", "topologySpread/keys"},
		{good + "networkPolicy: {serveFrom: [{}]}", "serveFrom/0"},
		{good + "serve: {extraVolumes: [{name: rules, emptyDir: {}}]}", "serve.extraVolumes: the name rules is taken"},
		{good + "work: {extraVolumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]}", "the name a is taken"},
		{good + "work: {extraVolumes: [{name: A, emptyDir: {}}]}", "the name A is not"},
		{good + "serve: {extraVolumeMounts: [{name: a, mountPath: /a}]}", "there is no volume a"},
		{good + "serve: {extraVolumeMounts: [{name: rules, mountPath: rules}]}", "the mountPath rules is not absolute"},
		{good + "serve: {extraVolumeMounts: [{name: rules, mountPath: /etc/streamcounter/rules/}]}",
			"the mountPath /etc/streamcounter/rules/ is taken"},
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

package chart_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Each pod has the least rights and bounds, its files change with their ConfigMap or Secret, and it has time to stop.
func TestPods(t *testing.T) {
	eachValues(t, func(t *testing.T, values map[string]any) {
		all := objects(t, values)
		for _, d := range deployments(t, all) {
			pod := d.Spec.Template.Spec
			c := pod.Containers[0]
			yes := func(b *bool) bool { return b != nil && *b }
			no := func(b *bool) bool { return b != nil && !*b }
			s, p := c.SecurityContext, pod.SecurityContext
			if !yes(p.RunAsNonRoot) || p.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault ||
				!no(s.AllowPrivilegeEscalation) || !yes(s.ReadOnlyRootFilesystem) ||
				!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 ||
				!no(pod.AutomountServiceAccountToken) || !no(pod.EnableServiceLinks) {
				t.Errorf("%s has more rights than it needs: %+v %+v", d.Name, p, s)
			}
			if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
				t.Errorf("%s: resources %v", d.Name, c.Resources)
			}
			for _, probe := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Port.StrVal != "health" {
					t.Errorf("%s: probe %+v, want one of the port health", d.Name, probe)
				}
			}
			drain, err := time.ParseDuration(environment(c)["STREAMCOUNTER_DRAIN_TIMEOUT"])
			must(t, err)
			if c.Lifecycle != nil {
				drain += time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
			}
			if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < drain+5*time.Second {
				t.Errorf("%s has %v to stop, and needs %v", d.Name, grace, drain)
			}
			if !selects(t, d.Spec.Selector, d.Spec.Template.Labels) {
				t.Errorf("%s does not select its pods", d.Name)
			}
			mounts(t, all, d.Name, pod)
		}
	})
}

// mounts: every file that the environment names lies in a volume, which is of this chart or somebody else's; no
// mount is a subPath, whose files never change.
func mounts(t *testing.T, all []runtime.Object, name string, pod core.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	for variable, value := range environment(c) {
		if strings.HasPrefix(value, "/") && !slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool {
			return value == m.MountPath || strings.HasPrefix(value, m.MountPath+"/")
		}) {
			t.Errorf("%s: %s is %s, which no volume has", name, variable, value)
		}
	}
	for _, m := range c.VolumeMounts {
		if m.SubPath != "" || !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("%s: mount %+v", name, m)
		}
	}
	for _, v := range pod.Volumes {
		if v.Secret != nil && strings.HasPrefix(v.Secret.SecretName, "limits-streamcounter-") {
			secret := find[*core.Secret](t, all, v.Secret.SecretName)
			for _, item := range v.Secret.Items {
				if secret.StringData[item.Key] == "" {
					t.Errorf("%s: the Secret %s has no %s", name, secret.Name, item.Key)
				}
			}
		}
		if v.ConfigMap != nil && strings.HasPrefix(v.ConfigMap.Name, "limits-streamcounter-") {
			find[*core.ConfigMap](t, all, v.ConfigMap.Name)
		}
	}
}

// Services, budgets, policies and spreads are of the pods of one component.
func TestSelectors(t *testing.T) {
	eachValues(t, func(t *testing.T, values map[string]any) {
		all := objects(t, values)
		var pods []labels.Set
		for _, d := range deployments(t, all) {
			pods = append(pods, d.Spec.Template.Labels)
			for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
				if !selects(t, spread.LabelSelector, d.Spec.Template.Labels) {
					t.Errorf("%s is not spread over %s", d.Name, spread.TopologyKey)
				}
			}
		}
		for _, object := range all {
			var selector *meta.LabelSelector
			switch o := object.(type) {
			case *core.Service:
				selector = &meta.LabelSelector{MatchLabels: o.Spec.Selector}
			case *policy.PodDisruptionBudget:
				selector = o.Spec.Selector
			case *networking.NetworkPolicy:
				selector = &o.Spec.PodSelector
			default:
				continue
			}
			n := 0
			for _, pod := range pods {
				if selects(t, selector, pod) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%T selects %d components: %v", object, n, selector)
			}
		}
	})
}

// The settings of production reach the right Deployment.
func TestProduction(t *testing.T) {
	all := objects(t, readValues(t, chartDir+"/ci/production-values.yaml"))
	serve := find[*apps.Deployment](t, all, "limits-serve")
	work := find[*apps.Deployment](t, all, "limits-work")
	hpa := find[*autoscaling.HorizontalPodAutoscaler](t, all, "limits-serve")
	if hpa.Spec.ScaleTargetRef.Name != serve.Name || serve.Spec.Replicas != nil || *work.Spec.Replicas != 4 {
		t.Errorf("the autoscaler scales %s, replicas %v and %v", hpa.Spec.ScaleTargetRef.Name, serve.Spec.Replicas,
			*work.Spec.Replicas)
	}
	// Without a cluster to look at (helm template, Argo CD) an autoscaler's replicas are left out. With one, see
	// TestAutoscalingKeepsThePods in tools/partners.
	if is := serve.Annotations["streamcounter/replicas"]; is != "autoscaler" {
		t.Errorf("the annotation of the replicas is %q", is)
	}
	find[*policy.PodDisruptionBudget](t, all, "limits-work")
	rules := find[*networking.NetworkPolicy](t, all, "limits-work").Spec.Egress
	if len(rules) != 3 || rules[1].Ports[0].Port.IntVal != 6380 || len(rules[2].To) != 1 {
		t.Errorf("work may reach %+v", rules)
	}
	monitor := find[*monitoring.ServiceMonitor](t, all, "limits")
	for _, name := range []string{"limits-serve", "limits-work"} {
		service := find[*core.Service](t, all, name)
		if !selects(t, &monitor.Spec.Selector, service.Labels) ||
			service.Spec.Ports[0].Name != monitor.Spec.Endpoints[0].Port {
			t.Errorf("Prometheus does not find %s", name)
		}
	}
	if key := serve.Spec.Template.Spec.Volumes[0].Secret.Items[0].Key; key != "serve" {
		t.Errorf("serve has the Redis URL %s", key)
	}
	if key := work.Spec.Template.Spec.Volumes[0].Secret.Items[0].Key; key != "work" {
		t.Errorf("work has the Redis URL %s", key)
	}
}

// A component may reach what its values name, and nothing else.
func TestEgress(t *testing.T) {
	const base = "redis: {url: x}\nnats: {url: x}\naccess: {open: true}\nrules: [{name: a}]\n"
	egress := func(rules string) string {
		return base + "networkPolicy: {enabled: true, egress: {enabled: true, " + rules + "}}\n"
	}
	for _, x := range []struct{ values, serve, work string }{
		{egress(""), "53 53 6379", "53 53 6379 4222"},
		{egress("sentinel: {enabled: true, port: 26380}"), "53 53 6379 26380", "53 53 6379 26380 4222"},
		{strings.Replace(egress(""), "url: x", "url: 'rediss+sentinel://a:26379,b:26379/main'", 1),
			"53 53 6379 26379", "53 53 6379 26379 4222"},
		{egress("") + "settings: {sinks: /etc/sinks/sinks.yml}", "53 53 6379", "53 53 6379 4222 443"},
		{egress("webhooks: {port: 8443}") + "settings: {sinks: x}", "53 53 6379", "53 53 6379 4222 8443"},
		{egress("") + "env: {OTEL_EXPORTER_OTLP_ENDPOINT: 'http://otel.prod:4318/x'}", "53 53 6379 4318",
			"53 53 6379 4222 4318"},
		{egress("") + "env: {OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://otel'}", "53 53 6379 443",
			"53 53 6379 4222 443"},
		{egress("extra: [{ports: [{port: 9000}], to: [{podSelector: {}}]}]"), "53 53 6379 9000",
			"53 53 6379 4222 9000"},
	} {
		values := map[string]any{}
		must(t, yaml.UnmarshalStrict([]byte(x.values), &values))
		all := objects(t, values)
		for component, want := range map[string]string{"serve": x.serve, "work": x.work} {
			var ports []string
			policy := find[*networking.NetworkPolicy](t, all, "limits-streamcounter-"+component)
			for _, rule := range policy.Spec.Egress {
				for _, port := range rule.Ports {
					ports = append(ports, port.Port.String())
				}
			}
			if got := strings.Join(ports, " "); got != want {
				t.Errorf("%s\n%s may reach the ports %s, want %s", x.values, component, got, want)
			}
		}
	}
}

// The alerts that the chart installs are those of deploy/alerts.yml, rule by rule.
func TestAlerts(t *testing.T) {
	all := objects(t, readValues(t, chartDir+"/ci/production-values.yaml"))
	b, err := os.ReadFile("../../alerts.yml")
	must(t, err)
	var want monitoring.PrometheusRuleSpec
	must(t, yaml.UnmarshalStrict(b, &want))
	have := find[*monitoring.PrometheusRule](t, all, "limits").Spec
	if len(want.Groups) == 0 || len(want.Groups[0].Rules) < 10 || !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}

func deployments(t *testing.T, all []runtime.Object) []*apps.Deployment {
	t.Helper()
	var found []*apps.Deployment
	for _, object := range all {
		if d, ok := object.(*apps.Deployment); ok {
			found = append(found, d)
		}
	}
	if alone := len(found) == 1 && strings.HasSuffix(found[0].Name, "-ratelimit"); len(found) != 2 && !alone {
		t.Fatalf("%d Deployments", len(found))
	}
	return found
}

func environment(c core.Container) map[string]string {
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = e.Value
	}
	return values
}

func selects(t *testing.T, selector *meta.LabelSelector, of labels.Set) bool {
	t.Helper()
	s, err := meta.LabelSelectorAsSelector(selector)
	must(t, err)
	return s.Matches(of)
}

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
			if c.StartupProbe == nil || c.LivenessProbe == nil || c.ReadinessProbe == nil {
				t.Errorf("%s lacks a probe", d.Name)
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
			if selects(t, selector, pods[0]) == selects(t, selector, pods[1]) {
				t.Errorf("%T selects both components or none: %v", object, selector)
			}
		}
	})
}

// What production switches on is there, and for the right Deployment.
func TestProduction(t *testing.T) {
	all := objects(t, readValues(t, chartDir+"/ci/production-values.yaml"))
	serve := find[*apps.Deployment](t, all, "limits-serve")
	work := find[*apps.Deployment](t, all, "limits-work")
	hpa := find[*autoscaling.HorizontalPodAutoscaler](t, all, "limits-serve")
	if hpa.Spec.ScaleTargetRef.Name != serve.Name || serve.Spec.Replicas != nil || *work.Spec.Replicas != 4 {
		t.Errorf("the autoscaler scales %s, replicas %v and %v", hpa.Spec.ScaleTargetRef.Name, serve.Spec.Replicas,
			*work.Spec.Replicas)
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
	if len(found) != 2 {
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

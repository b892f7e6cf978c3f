package chart_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// An upgrade never changes how many pods an autoscaler wants, from the first one that turns it on. Helm patches with
// the difference of two manifests (Helm 3, and releases of Helm 3 under Helm 4) or applies on the server's side.
func TestAutoscalingKeepsThePods(t *testing.T) {
	for name, how := range map[string]func(*cluster, []byte) error{
		"client-side": (*cluster).patch, "server-side": (*cluster).apply} {
		t.Run(name, func(t *testing.T) {
			fixed := readValues(t, chartDir+"/ci/minimal-values.yaml")
			scaled := maps.Clone(fixed)
			fixed["serve"] = map[string]any{"replicas": 4}
			scaled["serve"] = map[string]any{"autoscaling": map[string]any{"enabled": true, "minReplicas": 3}}

			c := newCluster(how)
			c.upgrade(t, fixed, 4)
			c.upgrade(t, scaled, 4) // the autoscaler is on, and has done nothing yet
			c.upgrade(t, scaled, 4)
			c.scale(t, 7)
			c.upgrade(t, scaled, 7)
			if owned := c.manifestHasReplicas(t); owned != (name == "client-side") {
				t.Errorf("the manifest has replicas: %t", owned)
			}
			c.scale(t, 9)
			c.upgrade(t, scaled, 9)

			c = newCluster(how) // it was on from the start
			c.upgrade(t, scaled, 1)
			c.scale(t, 5)
			for range 2 {
				if c.upgrade(t, scaled, 5); c.manifestHasReplicas(t) {
					t.Error("the manifest has replicas, which a rollback would set")
				}
			}
		})
	}
}

// Without a cluster to look at (helm template, Argo CD) an autoscaler's replicas are left out.
func TestAutoscalingWithoutACluster(t *testing.T) {
	serve := find[*apps.Deployment](t, objects(t, readValues(t, chartDir+"/ci/production-values.yaml")), "limits-serve")
	if serve.Spec.Replicas != nil || serve.Annotations["streamcounter/replicas"] != "autoscaler" {
		t.Errorf("replicas %v, annotations %v", serve.Spec.Replicas, serve.Annotations)
	}
}

// cluster has one live Deployment, and the manifest that it came from.
type cluster struct {
	how    func(c *cluster, manifest []byte) error
	last   []byte
	live   *unstructured.Unstructured         // nil: there is none yet
	fields managedfieldstest.TestFieldManager // the API server's code for server-side apply
}

func newCluster(how func(*cluster, []byte) error) *cluster {
	return &cluster{how: how, fields: managedfieldstest.NewTestFieldManager(
		applyconfigurations.NewTypeConverter(scheme.Scheme), apps.SchemeGroupVersion.WithKind("Deployment"))}
}

// GetClientFor gives what `lookup` in a template reads from.
func (c *cluster) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	var all []runtime.Object
	if c.live != nil {
		all = append(all, c.live.DeepCopy())
	}
	client := fake.NewSimpleDynamicClient(scheme.Scheme, all...)
	return client.Resource(apps.SchemeGroupVersion.WithResource("deployments")), true, nil
}

// upgrade renders the chart as `helm upgrade --install` does, and brings the Deployment of serve into the cluster.
func (c *cluster) upgrade(t *testing.T, values map[string]any, want int64) {
	t.Helper()
	documents, err := renderWith(values, c)
	must(t, err)
	i := slices.IndexFunc(documents, func(d string) bool {
		return strings.Contains(d, "\nkind: Deployment\n") && strings.Contains(d, "name: limits-streamcounter-serve\n")
	})
	manifest, err := yaml.YAMLToJSON([]byte(documents[i]))
	must(t, err)
	must(t, c.how(c, manifest))
	c.last = manifest
	if _, given, _ := unstructured.NestedInt64(c.live.Object, "spec", "replicas"); !given { // the API's default
		must(t, unstructured.SetNestedField(c.live.Object, int64(1), "spec", "replicas"))
	}
	if got, _, _ := unstructured.NestedInt64(c.live.Object, "spec", "replicas"); got != want {
		t.Errorf("%d pods after an upgrade, want %d", got, want)
	}
}

// patch is Helm's three-way merge of the last manifest, the new one and what is live.
func (c *cluster) patch(manifest []byte) error {
	if c.live == nil {
		c.live = &unstructured.Unstructured{}
		return c.live.UnmarshalJSON(manifest)
	}
	meta, err := strategicpatch.NewPatchMetaFromStruct(apps.Deployment{})
	if err != nil {
		return err
	}
	live, err := c.live.MarshalJSON()
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(c.last, manifest, live, meta, true)
	if err != nil {
		return err
	}
	if live, err = strategicpatch.StrategicMergePatch(live, patch, apps.Deployment{}); err != nil {
		return err
	}
	return c.live.UnmarshalJSON(live)
}

// apply is Helm's server-side apply.
func (c *cluster) apply(manifest []byte) error {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(manifest); err != nil {
		return err
	}
	err := c.fields.Apply(object, "helm", false)
	c.read()
	return err
}

// read takes the live object from the field manager.
func (c *cluster) read() {
	c.live = c.fields.Live().(*unstructured.Unstructured) //nolint:forcetypeassert // what was applied
	c.live.SetManagedFields(c.fields.ManagedFields())
}

// scale is what an autoscaler does.
func (c *cluster) scale(t *testing.T, to int64) {
	t.Helper()
	must(t, unstructured.SetNestedField(c.live.Object, to, "spec", "replicas"))
	if len(c.live.GetManagedFields()) > 0 {
		must(t, c.fields.Update(c.live, "kube-controller-manager"))
		c.read()
	}
}

func (c *cluster) manifestHasReplicas(t *testing.T) bool {
	t.Helper()
	var d apps.Deployment
	must(t, json.Unmarshal(c.last, &d))
	return d.Spec.Replicas != nil
}

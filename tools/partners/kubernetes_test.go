package partners

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const chart = "../../deploy/helm/streamcounter"

// The API server accepts everything that the chart makes from each of its values files, strictly, and so do both
// Helms when they install it.
func TestChart(t *testing.T) {
	c := startCluster(t)
	c.namespace("prod")
	valuesFiles, err := filepath.Glob(chart + "/ci/*-values.yaml")
	testkit.Must(t, err)
	if len(valuesFiles) < 5 {
		t.Fatalf("values files: %v", valuesFiles)
	}
	for _, file := range valuesFiles {
		name := strings.TrimSuffix(filepath.Base(file), "-values.yaml")
		t.Run(name, func(t *testing.T) {
			c.accept(t, c.helm(t, "helm4", "template", "limits", chart, "-n", "prod", "-f", file))
			for _, helm := range []string{"helm3", "helm4"} {
				namespace := name + "-" + helm
				c.helm(t, helm, "install", "limits", chart, "-n", namespace, "--create-namespace", "-f", file)
				c.helm(t, helm, "upgrade", "limits", chart, "-n", namespace, "-f", file)
				c.helm(t, helm, "uninstall", "limits", "-n", namespace)
			}
		})
	}
	t.Run("each kind of Service", func(t *testing.T) {
		for _, more := range []string{"serve.service.type=NodePort", "serve.service.type=LoadBalancer",
			"serve.service.headless=true", "work.podDisruptionBudget.maxUnavailable=50%", "serve.grpc=false"} {
			c.accept(t, c.helm(t, "helm4", "template", "limits", chart, "-n", "prod",
				"-f", chart+"/ci/minimal-values.yaml", "--set", more))
		}
	})
	t.Run("a field that there is not", func(t *testing.T) {
		const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
		if err := c.try("prod", configMap+"data: {}\n"); err != nil {
			t.Error(err)
		}
		for _, wrong := range []string{"dta: {}\n", "data: {}\ndata: {}\n"} {
			if err := c.try("prod", configMap+wrong); err == nil {
				t.Errorf("the API server takes %q", wrong)
			}
		}
	})
	t.Run("kubernetes.yaml", func(t *testing.T) {
		text, err := os.ReadFile("../../deploy/kubernetes.yaml")
		testkit.Must(t, err)
		c.accept(t, string(text))
	})
}

// accept creates the documents of a text as a dry run.
func (c *cluster) accept(t *testing.T, text string) {
	t.Helper()
	all := documents(text)
	for _, document := range all {
		if err := c.try("prod", document); err != nil {
			t.Errorf("%v\n%s", err, document)
		}
	}
	if len(all) < 4 {
		t.Errorf("%d documents in %s", len(all), text)
	}
}

// documents returns the objects in a manifest.
func documents(text string) (all []string) {
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if strings.Contains(document, "\nkind:") {
			all = append(all, document)
		}
	}
	return all
}

// The number of pods stays the same when an upgrade turns autoscaling on, and at each later upgrade: while the
// autoscaler has done nothing, and after it has scaled. Each pair is the Helm that installs and the one that
// upgrades.
func TestAutoscalingKeepsThePods(t *testing.T) {
	c := startCluster(t)
	c.startControllers(t)
	const fixed, more = "serve.replicas=4", "drainTimeoutSeconds=7"
	scaled := []string{fixed, "serve.autoscaling.enabled=true", "serve.autoscaling.minReplicas=2",
		"serve.autoscaling.maxReplicas=9"}
	for _, helm := range [][2]string{{"helm3", "helm3"}, {"helm4", "helm4"}, {"helm3", "helm4"}} {
		name := helm[0] + "-" + helm[1]
		t.Run("turned on later, "+name, func(t *testing.T) {
			r := c.release("later-" + name)
			r.run(t, helm[0], "install", fixed)
			r.hasPods(t, 4)
			r.run(t, helm[1], "upgrade", scaled...)
			if got := r.manifest(t, helm[1]).Spec.Replicas; got == nil || *got != 4 {
				t.Errorf("the manifest has the replicas %v: the chart has not looked up that there are 4", got)
			}
			r.autoscaled(t)
			r.run(t, helm[1], "upgrade", scaled...)
			r.had(t, 4)
			r.scale(t, 7)
			r.hasPods(t, 7)
			r.run(t, helm[1], "upgrade", append(scaled, more)...)
			r.run(t, helm[1], "upgrade", scaled...)
			r.had(t, 4, 7)
		})
		t.Run("on from the start, "+name, func(t *testing.T) {
			r := c.release("start-" + name)
			r.run(t, helm[0], "install", scaled...)
			// The API server's default is 1. The autoscaler raises it to 2, its minimum, and does nothing else:
			// nothing measures the pods.
			r.hasPods(t, 2)
			r.scale(t, 5)
			for _, sets := range [][]string{append(scaled, more), scaled} {
				r.run(t, helm[1], "upgrade", sets...)
				if got := r.manifest(t, helm[1]).Spec.Replicas; got != nil {
					t.Errorf("the manifest has %d replicas, want none", *got)
				}
			}
			c.helm(t, helm[1], "rollback", "limits", "1", "-n", r.namespace)
			r.had(t, 1, 2, 5)
		})
	}
}

const serveName = "limits-streamcounter-serve"

// release is an installation of the chart, with minimal values and others.
type release struct {
	*cluster
	namespace string
	noted     *replicas // of the Deployment of serve
}

func (c *cluster) release(namespace string) *release {
	c.t.Helper()
	c.namespace(namespace)
	return &release{cluster: c, namespace: namespace, noted: c.watch(c.t, namespace, serveName)}
}

func (r *release) run(t testing.TB, helm, command string, sets ...string) {
	t.Helper()
	args := []string{command, "limits", chart, "-n", r.namespace, "-f", chart + "/ci/minimal-values.yaml"}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	r.helm(t, helm, args...)
}

// manifest returns the Deployment of serve in the last manifest that Helm keeps.
func (r *release) manifest(t testing.TB, helm string) (d deployment) {
	t.Helper()
	for _, document := range documents(r.helm(t, helm, "get", "manifest", "limits", "-n", r.namespace)) {
		d = deployment{}
		testkit.Must(t, yaml.Unmarshal([]byte(document), &d))
		if d.Kind == "Deployment" && d.Metadata.Name == serveName {
			return d
		}
	}
	t.Fatal("the manifest has no Deployment of serve")
	return d
}

// had checks that the Deployment of serve has had exactly these numbers of replicas until now, in this order.
func (r *release) had(t testing.TB, want ...int) {
	t.Helper()
	var now deployment
	testkit.Must(t, json.Unmarshal([]byte(r.must("GET", "/apis/apps/v1/namespaces/"+r.namespace+"/deployments/"+
		serveName, "")), &now))
	if got := slices.Compact(r.noted.until(t, now.Metadata.ResourceVersion)); !slices.Equal(got, want) {
		t.Errorf("the replicas went %v, want %v", got, want)
	}
}

// scale does what an autoscaler does.
func (r *release) scale(t testing.TB, to int) {
	t.Helper()
	r.must("PUT", "/apis/apps/v1/namespaces/"+r.namespace+"/deployments/"+serveName+"/scale", fmt.Sprintf(
		"{apiVersion: autoscaling/v1, kind: Scale, spec: {replicas: %d}, metadata: {name: %s, namespace: %s}}",
		to, serveName, r.namespace))
}

// hasPods waits until the Deployment of serve has n pods.
func (r *release) hasPods(t testing.TB, n int) {
	t.Helper()
	streamtest.Eventually(t, fmt.Sprintf("there are %d pods", n), func() (bool, string) {
		var pods struct{ Items []struct{} }
		_, body, err := r.do("GET", "/api/v1/namespaces/"+r.namespace+
			"/pods?labelSelector=app.kubernetes.io/component%3Dserve", "")
		if err == nil {
			err = json.Unmarshal([]byte(body), &pods)
		}
		return len(pods.Items) == n, fmt.Sprint(len(pods.Items), err)
	})
}

// autoscaled waits until the autoscaler has examined the Deployment.
func (r *release) autoscaled(t testing.TB) {
	t.Helper()
	streamtest.Eventually(t, "the autoscaler looks", func() (bool, string) {
		_, body, err := r.do("GET", "/apis/autoscaling/v2/namespaces/"+r.namespace+
			"/horizontalpodautoscalers/"+serveName, "")
		return strings.Contains(body, "AbleToScale"), fmt.Sprint(body, err)
	})
}

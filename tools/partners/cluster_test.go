package partners

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

const clusterToken = "TOKEN-OF-THE-ADMINISTRATOR"

// cluster is a Kubernetes without nodes: an API server with its etcd and, if a test starts them, the controllers that
// make pods of Deployments and scale them. Pods stay Pending.
type cluster struct {
	t          testing.TB
	url        string
	kubeconfig string
	client     *http.Client
}

// startCluster runs a cluster with the resources of the Prometheus operator.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	peer, etcd := "http://"+testkit.FreeAddr(t), "http://"+testkit.FreeAddr(t)
	start(t, nil, built(t, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "warn")

	// The API server reads a public key from a certificate, and a private key in PKCS #8.
	certificate, key := streamtest.NewAuthority(t).Issue("service-accounts")
	port := fmt.Sprint(testkit.FreePort(t))
	c := &cluster{t: t, url: "https://127.0.0.1:" + port, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}} // it makes its own certificate
	server := start(t, nil, built(t, "kube-apiserver"), "--etcd-servers", etcd, "--bind-address", "127.0.0.1",
		"--advertise-address", "127.0.0.1", "--secure-port", port, "--cert-dir", filepath.Join(dir, "apiserver"),
		"--authorization-mode", "RBAC",
		"--token-auth-file", testkit.WriteFile(t, "tokens.csv", clusterToken+`,admin,1,"system:masters"`+"\n"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", certificate,
		"--service-account-signing-key-file", key, "--service-cluster-ip-range", "10.0.0.0/16",
		"--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none")
	c.kubeconfig = testkit.WriteFile(t, "kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: %s}}]
`, c.url, clusterToken))
	c.await(server, "/readyz")
	for _, name := range []string{"servicemonitors", "prometheusrules"} {
		text, err := os.ReadFile(filepath.Join(operatorDir(t),
			"example/prometheus-operator-crd/monitoring.coreos.com_"+name+".yaml"))
		testkit.Must(t, err)
		c.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", string(text))
		c.await(server, "/apis/monitoring.coreos.com/v1/"+name)
	}
	return c
}

// await waits until the API server serves a path.
func (c *cluster) await(server *program, path string) {
	c.t.Helper()
	server.Eventually("the API server serves "+path, func() (bool, string) {
		status, body, err := c.do("GET", path, "")
		return err == nil && status == 200, fmt.Sprint(status, body, err)
	})
}

// startControllers runs the controllers that make pods of Deployments, and the autoscaler.
func (c *cluster) startControllers(t *testing.T) {
	t.Helper()
	start(t, nil, built(t, "kube-controller-manager"), "--kubeconfig", c.kubeconfig, "--leader-elect=false",
		"--controllers", "deployment-controller,replicaset-controller,horizontal-pod-autoscaler-controller",
		"--horizontal-pod-autoscaler-sync-period", "1s", "--bind-address", "127.0.0.1",
		"--secure-port", fmt.Sprint(testkit.FreePort(t)), "--cert-dir", t.TempDir())
}

// operatorDir is the directory of the module of the Prometheus operator.
func operatorDir(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "mod", "download", "-json", Operator).Output()
	testkit.Must(t, err)
	var module struct{ Dir string }
	testkit.Must(t, json.Unmarshal(out, &module))
	return module.Dir
}

// do sends a request with YAML and returns the status and the body.
func (c *cluster) do(method, path, body string) (int, string, error) {
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+clusterToken)
	r.Header.Set("Content-Type", "application/yaml")
	resp, err := c.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func (c *cluster) must(method, path, body string) string {
	c.t.Helper()
	status, text, err := c.do(method, path, body)
	if err != nil || status >= 300 {
		c.t.Fatalf("%s %s: %d %s %v\n%s", method, path, status, text, err, body)
	}
	return text
}

func (c *cluster) namespace(name string) {
	c.t.Helper()
	c.must("POST", "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}")
}

// try creates an object as a dry run and returns the errors of the API server: an unknown field, or a field that
// occurs twice, is an error.
func (c *cluster) try(namespace, document string) error {
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(document), &object); err != nil {
		return err
	}
	group := "/apis/" + object.APIVersion
	if !strings.Contains(object.APIVersion, "/") {
		group = "/api/" + object.APIVersion
	}
	_, text, err := c.do("GET", group, "")
	if err != nil {
		return err
	}
	var known struct {
		Resources []struct{ Name, Kind string }
	}
	if err := json.Unmarshal([]byte(text), &known); err != nil {
		return err
	}
	for _, r := range known.Resources {
		if r.Kind != object.Kind || strings.Contains(r.Name, "/") {
			continue
		}
		path := group + "/namespaces/" + namespace + "/" + r.Name + "?dryRun=All&fieldValidation=Strict"
		status, body, err := c.do("POST", path, document)
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("%s %s: %d %s", object.Kind, object.Metadata.Name, status, body)
		}
		return err
	}
	return fmt.Errorf("the API server has no %s in %s", object.Kind, object.APIVersion)
}

// helm runs one of the Helms with the chart.
func (c *cluster) helm(t testing.TB, version string, args ...string) (stdout string) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(built(t, version), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home,
		"HELM_DATA_HOME="+home)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", version, strings.Join(args, " "), err, &out, &problems)
	}
	return out.String()
}

// deployment is the part of a Deployment that the tests use.
type deployment struct {
	Kind     string
	Metadata struct {
		Name            string
		ResourceVersion string `yaml:"resourceVersion"`
	}
	Spec struct{ Replicas *int }
}

// replicas records each value of spec.replicas that a Deployment has had.
type replicas struct {
	mu       sync.Mutex
	seen     []int
	versions []string // of the resource
}

// watch records from now on, until the test ends.
func (c *cluster) watch(t testing.TB, namespace, name string) *replicas {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", c.url+"/apis/apps/v1/namespaces/"+namespace+
		"/deployments?watch=1&fieldSelector=metadata.name%3D"+name, nil)
	testkit.Must(t, err)
	r.Header.Set("Authorization", "Bearer "+clusterToken)
	resp, err := c.client.Do(r)
	testkit.Must(t, err)
	noted := &replicas{}
	go func() {
		defer resp.Body.Close()
		for events := json.NewDecoder(resp.Body); ; {
			var e struct{ Object deployment }
			if events.Decode(&e) != nil {
				return
			}
			noted.mu.Lock()
			noted.seen = append(noted.seen, *e.Object.Spec.Replicas)
			noted.versions = append(noted.versions, e.Object.Metadata.ResourceVersion)
			noted.mu.Unlock()
		}
	}()
	return noted
}

// until returns the values up to a version of the Deployment.
func (r *replicas) until(t testing.TB, version string) (seen []int) {
	t.Helper()
	streamtest.Eventually(t, "the watch has version "+version, func() (bool, string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.Index(r.versions, version)
		seen = slices.Clone(r.seen[:i+1])
		return i >= 0, fmt.Sprint(r.versions)
	})
	return seen
}

package chart_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The program runs with the arguments, variables and files that the chart gives the pods, answers the probes, and
// takes up a change of the ConfigMap as the kubelet makes it.
func TestProgramRunsAsInThePod(t *testing.T) {
	program := os.Getenv("STREAMCOUNTER_TEST_PROGRAM")
	if program == "" {
		program = filepath.Join(t.TempDir(), "streamcounter")
		build := exec.Command("go", "build", "-C", "../../..", "-o", program, "./cmd/streamcounter")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, name := range []string{"minimal", "tokens", "small"} {
		for _, component := range []string{"serve", "work"} {
			t.Run(name+"/"+component, func(t *testing.T) {
				values := readValues(t, chartDir+"/ci/"+name+"-values.yaml")
				values["redis"] = map[string]any{"url": "embedded:" + port(t)}
				values["nats"] = map[string]any{"url": "embedded:" + port(t)}
				pod := startPod(t, program, component, objects(t, values))
				pod.probes(t)
				pod.changeRules(t)
				if said := pod.said(t); strings.Contains(said, "is not a setting") {
					t.Errorf("the chart sets what the program does not know:\n%s", said)
				}
			})
		}
	}
}

// pod is a process that runs as the container of a pod would, with its volumes in a directory.
type pod struct {
	spec   core.Container
	dir    string // in place of /
	health string // its address
	log    string
	end    chan error // closed when the process has ended
}

func startPod(t *testing.T, program, component string, all []runtime.Object) *pod {
	t.Helper()
	both := deployments(t, all)
	spec := both[slices.IndexFunc(both, func(d *apps.Deployment) bool {
		return strings.HasSuffix(d.Name, "-"+component)
	})].Spec.Template.Spec
	p := &pod{spec: spec.Containers[0], dir: t.TempDir(), health: "127.0.0.1:" + port(t)}
	for i, m := range p.spec.VolumeMounts {
		p.mount(t, all, spec.Volumes[i], filepath.Join(p.dir, m.MountPath))
	}
	p.log = filepath.Join(p.dir, "log")
	log, err := os.Create(p.log)
	must(t, err)
	cmd := exec.Command(program, p.spec.Args...)
	cmd.Stderr = log
	for name, value := range environment(p.spec) {
		switch {
		case strings.HasPrefix(value, "/"):
			value = filepath.Join(p.dir, value)
		case name == "STREAMCOUNTER_HEALTH":
			value = p.health
		case name == "STREAMCOUNTER_HTTP" || name == "STREAMCOUNTER_GRPC":
			value = "127.0.0.1:" + port(t)
		}
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	must(t, cmd.Start())
	p.end = make(chan error, 1)
	go func() {
		p.end <- cmd.Wait()
		close(p.end)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := <-p.end; err != nil {
			t.Errorf("%s ended with %v\n%s", component, err, p.said(t))
		}
		_ = log.Close()
	})
	return p
}

// mount writes a volume as the kubelet does: files are links into ..data, which is a link to a directory.
func (p *pod) mount(t *testing.T, all []runtime.Object, v core.Volume, dir string) {
	t.Helper()
	files := map[string]string{}
	if v.Secret != nil {
		data := find[*core.Secret](t, all, v.Secret.SecretName).StringData
		for _, item := range v.Secret.Items {
			files[item.Path] = data[item.Key]
		}
	} else {
		files = find[*core.ConfigMap](t, all, v.ConfigMap.Name).Data
	}
	writeVolume(t, dir, "..1", files)
	for name := range files {
		must(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
}

func writeVolume(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, version), 0o755))
	for name, content := range files {
		must(t, os.WriteFile(filepath.Join(dir, version, name), []byte(content), 0o400))
	}
	must(t, os.Symlink(version, filepath.Join(dir, "..tmp")))
	must(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
}

// probes are answered with 200.
func (p *pod) probes(t *testing.T) {
	t.Helper()
	for _, probe := range []*core.Probe{p.spec.StartupProbe, p.spec.LivenessProbe, p.spec.ReadinessProbe} {
		url := "http://" + p.health + probe.HTTPGet.Path
		p.until(t, url, func() bool {
			answer, err := http.Get(url)
			if err != nil {
				return false
			}
			_ = answer.Body.Close()
			return answer.StatusCode == http.StatusOK
		})
	}
}

// changeRules swaps the volume of the rules, and waits until the process says that it has them.
func (p *pod) changeRules(t *testing.T) {
	t.Helper()
	dir := filepath.Join(p.dir, "etc/streamcounter/rules")
	writeVolume(t, dir, "..2", map[string]string{
		"rules.yml": "rules: [{name: changed, match: 'user:*', windows: [{limit: 7, per: 1m}]}]\n"})
	p.until(t, "the changed rules", func() bool { return strings.Contains(p.said(t), `"rules reloaded"`) })
}

func (p *pod) said(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(p.log)
	must(t, err)
	return string(b)
}

// until waits for what the process does; it gives up after a time that no machine needs.
func (p *pod) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for late := time.After(time.Minute); !done(); {
		select {
		case <-late:
			t.Fatalf("no %s within a minute\n%s", what, p.said(t))
		case err := <-p.end:
			t.Fatalf("the process ended before %s: %v\n%s", what, err, p.said(t))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// port gives a free port.
func port(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, free, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	return free
}

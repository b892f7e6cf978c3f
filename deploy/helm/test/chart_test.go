// Package chart_test renders the Helm chart with Helm's own code and reads the result as the API server
// would. It is a module of its own, so that nobody who uses streamcounter has Helm among his requirements.
package chart_test

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	chartutil "helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const chartDir = "../streamcounter"

var update = flag.Bool("update", false, "write deploy/kubernetes.yaml anew")

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eachValues runs a test with each of the chart's values files.
func eachValues(t *testing.T, test func(t *testing.T, values map[string]any)) {
	files, err := filepath.Glob(chartDir + "/ci/*-values.yaml")
	must(t, err)
	if len(files) < 5 {
		t.Fatalf("values files: %v", files)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), "-values.yaml"), func(t *testing.T) {
			test(t, readValues(t, file))
		})
	}
}

func readValues(t *testing.T, file string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(file)
	must(t, err)
	values := map[string]any{}
	must(t, yaml.UnmarshalStrict(b, &values))
	return values
}

// render is what `helm template limits deploy/helm/streamcounter -n prod -f VALUES` gives: documents in the
// order of their files.
func render(values map[string]any) ([]string, error) {
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		return nil, err
	}
	with, err := chartutil.ToRenderValues(chart, values,
		common.ReleaseOptions{Name: "limits", Namespace: "prod", IsInstall: true}, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, with)
	if err != nil {
		return nil, err
	}
	var documents []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for document := range strings.SplitSeq(files[name], "\n---\n") {
			if document = strings.Trim(document, "-\n "); document != "" {
				documents = append(documents, document+"\n")
			}
		}
	}
	return documents, nil
}

// decode reads a document as its API type. A field that the type does not have, or that stands twice, is an error.
func decode(t *testing.T, document string) runtime.Object {
	t.Helper()
	object, _, err := strict.Decode([]byte(document), nil, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	return object
}

var strict = func() runtime.Decoder {
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoring.AddToScheme} {
		if err := add(types); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
}()

func objects(t *testing.T, values map[string]any) []runtime.Object {
	t.Helper()
	documents, err := render(values)
	must(t, err)
	var all []runtime.Object
	for _, document := range documents {
		all = append(all, decode(t, document))
	}
	return all
}

// find gives the object of type T with a name.
func find[T interface {
	runtime.Object
	GetName() string
}](t *testing.T, all []runtime.Object, name string) T {
	t.Helper()
	for _, object := range all {
		if found, ok := object.(T); ok && found.GetName() == name {
			return found
		}
	}
	var none T
	t.Fatalf("no %T has the name %s", none, name)
	return none
}

// helm lint says nothing, not even a warning.
func TestLint(t *testing.T) {
	eachValues(t, func(t *testing.T, values map[string]any) {
		for _, m := range lint.RunAll(chartDir, values, "prod").Messages {
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	})
}

// kubernetes.yaml is what the chart gives, for whoever has no Helm.
func TestKubernetesYAML(t *testing.T) {
	const file = "../../kubernetes.yaml"
	documents, err := render(readValues(t, chartDir+"/ci/kubernetes-values.yaml"))
	must(t, err)
	want := "# Written by `make chart` from the Helm chart and its\n" +
		"# ci/kubernetes-values.yaml. Put in your Redis, NATS, tokens and rules; then:\n#\n" +
		"#   kubectl create namespace prod\n#   kubectl apply -f deploy/kubernetes.yaml\n---\n" +
		strings.ReplaceAll(strings.Join(documents, "---\n"), "managed-by: Helm", "managed-by: kubectl")
	want = regexp.MustCompile(`(?m)^ +helm.sh/chart: .*\n`).ReplaceAllString(want, "")
	if *update {
		must(t, os.WriteFile(file, []byte(want), 0o644))
	}
	have, err := os.ReadFile(file)
	must(t, err)
	if string(have) != want {
		t.Errorf("%s is not what the chart gives: make chart writes it", file)
	}
	for document := range strings.SplitSeq(string(have), "\n---\n") {
		if !strings.HasPrefix(document, "#") {
			decode(t, document)
		}
	}
}

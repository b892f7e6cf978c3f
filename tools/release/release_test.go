package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// checkout clones the current commit into a directory.
func checkout(t *testing.T, dir string) string {
	t.Helper()
	if out, err := exec.Command("git", "clone", "-q", "--shared", "../..", dir).CombinedOutput(); err != nil {
		t.Skipf("no repository to build a release of: git clone: %v\n%s", err, out)
	}
	return dir
}

func thisVersion(t *testing.T, source string) string {
	t.Helper()
	code, err := os.ReadFile(filepath.Join(source, "cmd/streamcounter/version.go"))
	must(t, err)
	return string(versionLine.FindSubmatch(code)[1])
}

// One commit that is built in two places, by users with other settings, results in the same bytes.
func TestBuildsAreReproducible(t *testing.T) {
	var all [2]string
	var r release
	for i, dir := range []string{"one", "a/deeper/place"} {
		source := checkout(t, filepath.Join(t.TempDir(), dir))
		if i == 1 {
			t.Setenv("GOFLAGS", "-ldflags=-X=main.commit=other")
			t.Setenv("GOAMD64", "v3")
			t.Setenv("TZ", "Asia/Tokyo")
		}
		r = release{version: thisVersion(t, source), source: source, out: t.TempDir()}
		must(t, r.describe("linux/amd64"))
		must(t, r.build())
		sums, err := os.ReadFile(filepath.Join(r.out, "SHA256SUMS"))
		must(t, err)
		all[i] = string(sums)
	}
	if all[0] != all[1] || strings.Count(all[0], "\n") != 4 {
		t.Fatalf("checksums of the first build:\n%s\nof the second:\n%s", all[0], all[1])
	}
	cmd := exec.Command("sha256sum", "-c", "SHA256SUMS")
	cmd.Dir = r.out
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	programOf(t, &r)
	sbomOf(t, &r)
	imageOf(t, &r)
	chartOf(t, &r)
}

// The program in the archive runs, and reports its commit.
func programOf(t *testing.T, r *release) {
	dir := t.TempDir()
	for name, content := range unpack(t, r.name(r.targets[0], ".tar.gz")) {
		must(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), content, 0o755))
	}
	out, err := exec.Command(filepath.Join(dir, "streamcounter"), "version").Output()
	if err != nil || !strings.Contains(string(out), r.version+" (commit "+r.commit+",") {
		t.Errorf("the program says %q, %v; want %s, %s", out, err, r.version, r.commit)
	}
}

// The SBOM has the modules of the program, and not those of tests and tools.
func sbomOf(t *testing.T, r *release) {
	f, err := os.Open(r.name(r.targets[0], ".cdx.json"))
	must(t, err)
	defer f.Close()
	var bom cyclonedx.BOM
	must(t, cyclonedx.NewBOMDecoder(f, cyclonedx.BOMFileFormatJSON).Decode(&bom))
	var names []string
	for _, c := range *bom.Components {
		names = append(names, c.Name)
	}
	for name, want := range map[string]bool{"std": true, "github.com/redis/go-redis/v9": true,
		"github.com/CycloneDX/cyclonedx-go": false, "pgregory.net/rapid": false} {
		if slices.Contains(names, name) != want {
			t.Errorf("the SBOM has %s: %t", name, !want)
		}
	}
}

// The image runs the program as a user without rights, and its labels say what it was made from.
func imageOf(t *testing.T, r *release) {
	dir := t.TempDir()
	for name, content := range unpack(t, filepath.Join(r.out, "streamcounter_"+r.version+"_image.tar")) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	list, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	top, err := list.IndexManifest()
	must(t, err)
	index, err := list.ImageIndex(top.Manifests[0].Digest)
	must(t, err)
	images, err := index.IndexManifest()
	must(t, err)
	image, err := index.Image(images.Manifests[0].Digest)
	must(t, err)
	config, err := image.ConfigFile()
	must(t, err)
	layers, err := image.Layers()
	must(t, err)
	if len(images.Manifests) != 1 || images.Manifests[0].Platform.String() != "linux/amd64" || len(layers) != 1 ||
		config.Config.User != "65532:65532" || config.Config.Labels["org.opencontainers.image.revision"] != r.commit {
		text, _ := json.Marshal(config)
		t.Errorf("the image is %s", text)
	}
	content, err := layers[0].Uncompressed()
	must(t, err)
	defer content.Close()
	if files := untar(t, content); len(files["streamcounter"]) < 1<<20 ||
		strings.Count(string(files["etc/ssl/certs/ca-certificates.crt"]), "BEGIN CERTIFICATE") < 50 {
		t.Errorf("the image has %d files", len(files))
	}
}

func chartOf(t *testing.T, r *release) {
	files := unpack(t, filepath.Join(r.out, "streamcounter-"+r.version+".tgz"))
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "templates/_pod.tpl",
		"files/alerts.yml"} {
		if len(files["streamcounter/"+name]) == 0 {
			t.Errorf("the chart has no %s", name)
		}
	}
}

func unpack(t *testing.T, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	defer f.Close()
	if filepath.Ext(name) == ".tar" {
		return untar(t, f)
	}
	content, err := gzip.NewReader(f)
	must(t, err)
	return untar(t, content)
}

func untar(t *testing.T, content io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(content); ; {
		head, err := archive.Next()
		if err == io.EOF {
			return files
		}
		must(t, err)
		files[head.Name], err = io.ReadAll(archive)
		must(t, err)
	}
}

// A build that nobody could repeat is not released.
func TestReleaseRefuses(t *testing.T) {
	source := checkout(t, filepath.Join(t.TempDir(), "source"))
	version := thisVersion(t, source)
	for _, x := range []struct{ version, targets, want string }{
		{"v1", "linux/amd64", `-version "v1": expected`},
		{"9.9.9", "linux/amd64", "-version is 9.9.9"},
		{version, "linux", `-targets: "linux": expected`},
	} {
		r := release{version: x.version, source: source}
		if err := r.describe(x.targets); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v gives %v", x, err)
		}
	}
	r := release{version: version, source: source}
	t.Setenv("SOURCE_DATE_EPOCH", "1795000000")
	must(t, r.describe("linux/amd64"))
	if !r.at.Equal(time.Unix(1795000000, 0)) {
		t.Errorf("timestamps are %v", r.at)
	}
	must(t, os.WriteFile(filepath.Join(source, "go.mod"), []byte("changed"), 0o644))
	if err := r.describe("linux/amd64"); err == nil || !strings.Contains(err.Error(), "go.mod") {
		t.Errorf("a changed checkout gives %v", err)
	}
}

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// build writes everything to r.out.
func (r *release) build() error {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(r.out, "streamcounter[_\\-]*"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.RemoveAll(name); err != nil {
			return err
		}
	}
	programs := map[target]string{}
	for _, t := range r.targets {
		if programs[t], err = r.program(t); err != nil {
			return err
		}
		defer os.Remove(programs[t])
		if err := r.archive(t, programs[t]); err != nil {
			return err
		}
		if err := r.sbom(t, programs[t]); err != nil {
			return err
		}
	}
	if err := r.chart(); err != nil {
		return err
	}
	if err := r.image(programs); err != nil {
		return err
	}
	return r.checksums()
}

func (r *release) name(t target, suffix string) string {
	return filepath.Join(r.out, fmt.Sprintf("streamcounter_%s_%s_%s%s", r.version, t.os, t.arch, suffix))
}

// program builds the program for one system. The result depends on nothing of this machine: no paths, no C, no build
// ID, no settings of the environment. The commit is passed explicitly, because Go would also record whether the
// checkout was modified.
func (r *release) program(t target) (string, error) {
	file, err := filepath.Abs(r.name(t, ""))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", file,
		"-ldflags", "-s -w -buildid= -X main.commit="+r.commit, "./cmd/streamcounter")
	cmd.Dir = r.source
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.Contains([]string{"GOFLAGS", "GOEXPERIMENT", "GOAMD64", "GOARM64", "GOFIPS140"}, name) {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch, "GOWORK=off", "GOENV=off",
		"GOPROXY="+goEnv("GOPROXY"), "GOSUMDB="+goEnv("GOSUMDB"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building for %s/%s: %w\n%s", t.os, t.arch, err, out)
	}
	return file, nil
}

// goEnv is a setting of go on this machine: GOENV=off leaves out the file of the others.
func goEnv(name string) string {
	out, _ := exec.Command("go", "env", name).Output()
	return strings.TrimSpace(string(out))
}

// archive packs the program with the files that are needed to install it by hand.
func (r *release) archive(t target, program string) error {
	files := []file{{"streamcounter", program, 0o755}}
	names := []string{"README.md", "CHANGELOG.md", "deploy/rules.yml", "deploy/alerts.yml"}
	if t.os == "linux" {
		names = append(names, "deploy/systemd/streamcounter-serve.service", "deploy/systemd/streamcounter-work.service",
			"deploy/systemd/streamcounter.sysusers")
	}
	for _, name := range names {
		files = append(files, file{filepath.Base(name), filepath.Join(r.source, name), 0o644})
	}
	return r.pack(r.name(t, ".tar.gz"), fmt.Sprintf("streamcounter_%s/", r.version), files)
}

// chart packs the Helm chart as `helm package` does, with each link replaced by the file that it names.
func (r *release) chart() error {
	dir := filepath.Join(r.source, "deploy/helm/streamcounter")
	var files []file
	for _, pattern := range []string{"Chart.yaml", "values*", "templates/*", "files/*"} {
		names, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			files = append(files, file{name, filepath.Join(dir, name), 0o644})
		}
	}
	return r.pack(filepath.Join(r.out, "streamcounter-"+r.version+".tgz"), "streamcounter/", files)
}

// checksums writes SHA256SUMS, which sha256sum -c reads.
func (r *release) checksums() error {
	names, err := filepath.Glob(filepath.Join(r.out, "streamcounter[_\\-]*.*"))
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, name := range names {
		if slices.Contains([]string{".gz", ".tgz", ".tar", ".json"}, filepath.Ext(name)) {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), filepath.Base(name))
		}
	}
	fmt.Print(sums.String())
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

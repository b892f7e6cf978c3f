// Command release builds the files of a release. Everybody who builds the same commit with the same Go gets the same
// bytes. The files are archives of the program for each system, an SBOM of each, the Helm chart, an image for each
// Linux architecture as one OCI layout, and SHA256SUMS.
//
//	go run -C tools ./release -version 0.1.0        (make release VERSION=0.1.0)
//
// Read build.go next.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// release describes what is built, and from what.
type release struct {
	version string
	commit  string    // of the source
	at      time.Time // of the commit: every timestamp in the files
	source  string    // directory of the checkout
	out     string    // directory of the files
	targets []target
}

type target struct{ os, arch string }

func main() {
	var r release
	var targets string
	flag.StringVar(&r.version, "version", "", "version to release, which must be that of cmd/streamcounter/version.go")
	flag.StringVar(&r.source, "source", "..", "directory of the checkout")
	flag.StringVar(&r.out, "out", "../dist", "directory to write to; what is in it of an earlier release is removed")
	flag.StringVar(&targets, "targets", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "systems to build for")
	flag.Parse()
	err := r.describe(targets)
	if err == nil {
		err = r.build()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

var (
	versionForm = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	versionLine = regexp.MustCompile(`(?m)^const version = "(.*)"$`)
)

// describe checks that the checkout is the source of this release.
func (r *release) describe(targets string) error {
	if !versionForm.MatchString(r.version) {
		return fmt.Errorf("-version %q: expected a version such as 0.1.0", r.version)
	}
	for pair := range strings.SplitSeq(targets, ",") {
		system, arch, ok := strings.Cut(pair, "/")
		if !ok || system == "" || arch == "" {
			return fmt.Errorf("-targets: %q: expected a pair such as linux/amd64", pair)
		}
		r.targets = append(r.targets, target{system, arch})
	}
	code, err := os.ReadFile(filepath.Join(r.source, "cmd/streamcounter/version.go"))
	if err != nil {
		return err
	}
	if m := versionLine.FindSubmatch(code); m == nil || string(m[1]) != r.version {
		return fmt.Errorf("cmd/streamcounter/version.go has %q, and -version is %s: change the file first", m,
			r.version)
	}
	changed, err := r.git("status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the checkout has changes that no commit has, so nobody could build the same:\n%s", changed)
	}
	if r.commit, err = r.git("rev-parse", "HEAD"); err != nil {
		return err
	}
	seconds := os.Getenv("SOURCE_DATE_EPOCH")
	if seconds == "" {
		if seconds, err = r.git("log", "-1", "--format=%ct"); err != nil {
			return err
		}
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is %q: expected seconds since 1970", seconds)
	}
	r.at = time.Unix(unix, 0).UTC()
	return nil
}

func (r *release) git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", r.source}, args...)...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

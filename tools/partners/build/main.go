// Command build builds the partners that are not built yet, after it has checked the other requirements of the tests.
// If programs are named, it builds only those, and checks nothing else.
//
//	go -C tools/partners run ./build -p 2
//	go -C tools/partners run ./build -p 2 etcd kube-apiserver
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/tools/partners"
)

const (
	needsGB = 15 // of disk: 1 GB for the programs, 3 GB for the modules, the rest for Go's build cache
	about   = `This builds partners of streamcounter from their Go modules, once, and then runs them.
It needs Linux, Go, Debian's packages (%s),
8 GB of memory, %d GB of disk and, the first time, the Go module proxy. Envoy Gateway listens at the ports 8081,
18000 to 18002, 19000 and 19001, which must be free: it has no setting for them.
To build takes about 45 minutes of CPU time, to run about 5 minutes.
`
)

func main() {
	parallel := flag.Int("p", 0, "how many packages to compile at the same time; 0 means one per core")
	flag.Parse()
	if err := run(*parallel, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "partners:", err)
		os.Exit(1)
	}
}

func run(parallel int, names []string) error {
	packages := slices.Sorted(maps.Values(partners.Debian))
	fmt.Printf(about, strings.Join(packages, ", "), needsGB)
	if err := os.MkdirAll(filepath.Join(partners.Dir(), "mod"), 0o755); err != nil {
		return err
	}
	if len(names) == 0 {
		if err := checkRequirements(); err != nil {
			return err
		}
	}
	if _, err := output("", "go", "mod", "download", partners.Operator); err != nil {
		return err
	}
	for _, p := range partners.Programs {
		if len(names) > 0 && !slices.Contains(names, p.Name) {
			continue
		}
		began := time.Now()
		if _, err := os.Stat(p.Path()); err == nil {
			fmt.Printf("%s %s is there\n", p.Name, p.Version)
			continue
		}
		fmt.Printf("%s %s is built from %s\n", p.Name, p.Version, p.Module)
		if err := build(p, parallel); err != nil {
			return fmt.Errorf("build %s from %s@%s: %w", p.Name, p.Module, p.Version, err)
		}
		fmt.Printf("%s %s is built (%s)\n", p.Name, p.Version, time.Since(began).Round(time.Second))
	}
	return nil
}

func checkRequirements() error {
	var missing []string
	for program, pkg := range partners.Debian {
		if _, err := exec.LookPath(program); err != nil {
			if _, err := os.Stat("/usr/sbin/" + program); err != nil {
				missing = append(missing, pkg)
			}
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("missing packages: apt-get install %s", strings.Join(missing, " "))
	}
	return nil
}

// build compiles a program in the module's own directory, as its authors do, with a copy of its go.mod.
func build(p partners.Program, parallel int) error {
	downloaded, err := output("", "go", "mod", "download", "-json", p.Module+"@"+p.Version)
	if err != nil {
		return err
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(downloaded, &module); err != nil {
		return fmt.Errorf("reading the output of go mod download: %w", err)
	}
	modfile := filepath.Join(partners.Dir(), "mod", p.Name+".mod")
	for from, to := range map[string]string{"go.mod": modfile, "go.sum": strings.TrimSuffix(modfile, "mod") + "sum"} {
		text, err := os.ReadFile(filepath.Join(module.Dir, from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return err
		}
	}
	if err := takeSiblings(modfile, p.Siblings); err != nil {
		return err
	}
	// A release has no debugging information. Without it, compiling takes a fifth less time.
	args := []string{"build", "-mod=mod", "-modfile=" + modfile, "-trimpath", "-gcflags=all=-dwarf=false",
		"-ldflags", "-s -w " + p.LDFlags, "-o", p.Path()}
	if parallel > 0 {
		args = append(args, "-p", strconv.Itoa(parallel))
	}
	_, err = output(module.Dir, "go", append(args, p.Package)...)
	return err
}

// takeSiblings replaces directories in the replace lines of go.mod by a version of the modules.
func takeSiblings(modfile, version string) error {
	text, err := output("", "go", "mod", "edit", "-json", modfile)
	if err != nil {
		return err
	}
	var mod struct {
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	if err := json.Unmarshal(text, &mod); err != nil {
		return fmt.Errorf("read %s: %w", modfile, err)
	}
	args := []string{"mod", "edit", "-toolchain=none"} // use the installed Go
	for _, r := range mod.Replace {
		if strings.HasPrefix(r.New.Path, ".") {
			args = append(args, "-replace="+r.Old.Path+"="+r.Old.Path+"@"+version)
		}
	}
	_, err = output("", "go", append(args, modfile)...)
	return err
}

// output runs a command in a directory and returns its output; its errors and progress are shown.
func output(dir, name string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, os.Stderr
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, args[0], err)
	}
	return out.Bytes(), nil
}

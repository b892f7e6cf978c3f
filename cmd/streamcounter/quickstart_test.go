package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

var quickstartBlock = regexp.MustCompile("(?s)<!-- (file|run): ([^ ,]+)(, beside [^ ]+)? -->\n```\\w*\n(.*?)```")

// docs/quickstart.md is complete: its files and commands do what it says.
func TestQuickstart(t *testing.T) {
	for job, want := range map[string][]string{
		"api":    {"200\n200\n200\n429\n429\n", "Retry-After: ", `"api-1m";r=0;t=`},
		"log":    {"ip:10.0.0.2"},
		"tokens": {"committed 1234", `"state":"committed"`, "1734"},
		"block":  {"exit code 1", "ip:10.0.0.9", "allowed by rule web"},
		"stuffing": {"Rule stuffing would have denied 2 of 10 requests, and throttled 1 of 6 keys.",
			"Rule sharing would have denied 2 of 10 requests, and throttled 1 of 6 keys."},
	} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			runQuickstart(t, job, want)
		})
	}
}

func runQuickstart(t *testing.T, job string, want []string) {
	programs := map[string][]string{"api": {"go", "curl"}, "tokens": {"python3", "curl"}}[job]
	for _, program := range append(programs, "sh", "sed") {
		streamtest.Program(t, program)
	}
	page, err := os.ReadFile("../../docs/quickstart.md")
	testkit.Must(t, err)
	dir, bin, service := t.TempDir(), t.TempDir(), testkit.FreeAddr(t)
	self := fmt.Sprintf("#!/bin/sh\nTEST_BINARY_IS_STREAMCOUNTER=1 exec %s \"$@\"\n", os.Args[0])
	testkit.Must(t, os.WriteFile(filepath.Join(bin, "streamcounter"), []byte(self), 0o755))
	root, err := filepath.Abs("../..")
	testkit.Must(t, err)
	blocks := quickstartBlock.FindAllStringSubmatch(string(page), -1)
	var d *devServer
	here := func(text string) string { // the ports of this test in place of dev's
		return strings.NewReplacer("127.0.0.1:8080", d.at, "redis://127.0.0.1:16379", d.redis,
			"127.0.0.1:9090", service).Replace(text)
	}
	for _, b := range blocks {
		if b[1] == "file" && b[2] == job+"/rules.yml" {
			// The time is for busy machines.
			d = startDev(t, "--rules", testkit.WriteFile(t, "rules.yml", b[4]), "--check-timeout", "10s")
		}
	}
	var said strings.Builder
	for _, b := range blocks {
		if name, found := strings.CutPrefix(b[2], job+"/"); b[1] == "file" && found {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(here(b[4])), 0o644))
		}
		if b[1] != "run" || b[2] != job {
			continue
		}
		if program, beside := strings.CutPrefix(b[3], ", beside "); beside {
			cmd := exec.Command(filepath.Join(dir, program))
			testkit.Must(t, cmd.Start())
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			streamtest.Eventually(t, program+" listens", func() (bool, string) {
				conn, err := net.Dial("tcp", service)
				if err == nil {
					_ = conn.Close()
				}
				return err == nil, fmt.Sprint(err)
			})
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", here(b[4]))
		cmd.Dir = dir
		cmd.Env = append(programEnv(), "PATH="+bin+":"+os.Getenv("PATH"), "STREAMCOUNTER="+root,
			"GOFLAGS=-mod=mod "+os.Getenv("GOFLAGS"))
		out, err := cmd.CombinedOutput()
		said.Write(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, text := range want {
		if !strings.Contains(said.String(), text) {
			t.Errorf("it did not say %q:\n%s", text, said.String())
		}
	}
}

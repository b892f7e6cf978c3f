package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/stream"
)

// version is the version of the next release, which CHANGELOG.md describes.
const version = "0.1.0"

// commit is set by the build of the image (-ldflags -X), because its source has no repository. In other builds the go
// command records the commit.
var commit = ""

// build is what `version --json` prints.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"` // empty: not known, as with `go run`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Contract int    `json:"redis_contract"`
}

func thisBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), Contract: stream.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = cmp.Or(b.Commit, s.Value)
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b build) String() string {
	commit := cmp.Or(b.Commit, "unknown")
	if b.Modified {
		commit += " with changes"
	}
	return fmt.Sprintf("streamcounter %s (commit %s, Redis contract %d, %s)", b.Version, commit, b.Contract, b.Go)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version",
		Long:    "Prints the version, the commit, and the version of the Redis contract.",
		Example: "  streamcounter version --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(thisBuild())
			}
			fmt.Fprintln(cmd.OutOrStdout(), thisBuild())
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

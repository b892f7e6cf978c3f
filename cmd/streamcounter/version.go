package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/stream"
)

// version is set by the release build (-ldflags -X); otherwise the module's own serves.
var version = ""

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  streamcounter version --json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Contract int    `json:"redis_contract"`
			}{Version: version, Go: runtime.Version(), Contract: stream.Version}
			if info, ok := debug.ReadBuildInfo(); ok {
				if v.Version == "" {
					v.Version = info.Main.Version
				}
				for _, s := range info.Settings {
					if s.Key == "vcs.revision" {
						v.Revision = s.Value
					}
				}
			}
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "streamcounter %s (%s, Redis contract %d)\n", v.Version, v.Go, v.Contract)
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print as JSON")
	return cmd
}

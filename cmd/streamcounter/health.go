package main

import (
	"net/http"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/settings"
)

func newHealth() *cobra.Command {
	c := settings.New()
	cmd := &cobra.Command{
		Use:     "health",
		Short:   "Exit 0 if the server at --http is ready (for container health checks)",
		Example: "  streamcounter health --http 127.0.0.1:8081",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer struct{ Status string }
			_, err := askFor(cmd, c, http.MethodGet, "/readyz", nil, &answer)
			return err
		},
	}
	c.Flags(cmd, "http", "caller", "tls-cert")
	return cmd
}

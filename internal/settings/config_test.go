package settings

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// The table of settings in the docs is the one in config.go.
func TestSettingsAreDocumented(t *testing.T) {
	testkit.Section(t, "../../docs/settings.md", "settings", settingsTable())
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| flag | environment | default | meaning |\n|---|---|---|---|\n")
	for _, g := range New().groups {
		for _, s := range g.settings {
			def := ""
			if value := shown(s.field); value != "" && value != "0s" {
				def = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", s.name, EnvName(s.name), def, s.usage)
		}
	}
	return b.String()
}

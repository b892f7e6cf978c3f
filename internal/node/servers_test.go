package node

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/settings"
)

// The address of each transport is a setting of that name, and each address is reported once.
func TestTransportsAreSettings(t *testing.T) {
	c := settings.New()
	for _, x := range transports {
		cmd := &cobra.Command{}
		c.Flags(cmd, x.name)
		if f := cmd.Flags().Lookup(x.name); f.Value.String() != x.addr(c) || x.title == "" || x.about == "" {
			t.Errorf("%s: the setting %s is not the address %q", x.name, f.Value, x.addr(c))
		}
	}
}

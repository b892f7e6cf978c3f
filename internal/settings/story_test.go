package settings

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A story has flags and variables of the environment, and what comes of them: the address of Redis, warnings and
// errors. In ratelimit.txt the variables are those of envoyproxy/ratelimit.
func TestStories(t *testing.T) {
	testkit.Stories(t, func(_ *testing.T, path, _ string, steps []string) (out []string) {
		for _, step := range steps {
			line, ok := strings.CutPrefix(step, "$ ")
			if !ok {
				continue // what came of it before
			}
			var args []string
			environment := map[string]string{}
			for word := range strings.FieldsSeq(line) {
				if name, value, ok := strings.Cut(word, "="); ok && name[0] != '-' {
					environment[name] = strings.ReplaceAll(value, `\x01`, "\x01")
				} else {
					args = append(args, word)
				}
			}
			out = append(append(out, step), read(strings.HasSuffix(path, "ratelimit.txt"), args, environment)...)
		}
		return out
	})
}

func read(ratelimit bool, args []string, environment map[string]string) (out []string) {
	c, cmd := New(), &cobra.Command{Use: "x"}
	for _, g := range c.groups {
		c.Flags(cmd, g.name)
	}
	look := func(name string) (string, bool) { value, ok := environment[name]; return value, ok }
	err := cmd.Flags().Parse(args)
	switch {
	case err != nil:
		err = FlagError(err, cmd.Flags())
	case ratelimit:
		var warnings []string
		if warnings, err = c.fromRatelimit(cmd.Flags(), look); err != nil {
			err = errors.New(AsSet(err.Error(), cmd.Flags()))
		}
		for _, w := range warnings {
			out = append(out, "warning: "+w)
		}
	default:
		err = c.load(cmd.Flags(), look)
	}
	if err != nil {
		return append(out, strings.Split(err.Error(), "\n")...)
	}
	return append(out, "--redis "+c.Redis.URL)
}

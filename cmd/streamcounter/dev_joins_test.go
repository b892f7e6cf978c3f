package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// Commands for trials take Redis and NATS only from flags, and warn about the variables that they ignored.
func TestTheEnvironmentChoosesNoDeploymentToTryThingsOn(t *testing.T) {
	t.Setenv("STREAMCOUNTER_REDIS", "redis://production")
	t.Setenv("STREAMCOUNTER_NATS", "nats://production")
	for name, cmd := range map[string]*cobra.Command{"dev": newDev(), "bench": newBench(),
		"pipeline": newBenchPipeline(), "compare": newCompare()} {
		testkit.Must(t, cmd.PreRunE(cmd, nil))
		for _, flag := range []string{"redis", "nats"} {
			if f := cmd.Flags().Lookup(flag); f != nil && (f.Value.String() != f.DefValue ||
				strings.Contains(f.Usage, settings.EnvName(flag)+"]")) {
				t.Errorf("%s --%s is %s, %s", name, flag, f.Value, f.Usage)
			}
		}
	}
	t.Setenv("STREAMCOUNTER_NATS_CREDS", "production.creds")
	p := startProgram(t, "dev", "--redis", "embedded:0", "--nats", "embedded:0", "--http", "127.0.0.1:0")
	p.until("STREAMCOUNTER_NATS_CREDS is ignored: this command takes --nats-creds from the command line alone")
	p.until("Ctrl-C stops it.")
}

// dev refuses a prefix that other processes use with other rules; with the same rules dev may join.
func TestDevRefusesAPrefixOfOtherRules(t *testing.T) {
	redis, prefix := streamtest.Redis(t), streamtest.Prefix(t)
	rules := devRules(t)
	serve := startProgram(t, "serve", "--redis", redis, "--prefix", prefix, "--rules", rules, "--http", "127.0.0.1:0")
	serve.until(`"msg":"ready"`)
	dev := "dev --redis " + redis + " --nats embedded:0 --http 127.0.0.1:0 --prefix " + prefix
	keys := keysOf(t, prefix)
	c := streamtest.Connect(t, redis)
	streamtest.Eventually(t, "serve has announced its rules", func() (bool, string) {
		n, err := c.HLen(t.Context(), keys.Processes()).Result()
		return n == 1, fmt.Sprint(n, err)
	})
	expect(t, dev, 1, "--prefix (STREAMCOUNTER_PREFIX): "+prefix, "is used by processes with other rules")
	startProgram(t, strings.Fields(dev+" --rules "+rules)...).until("Ctrl-C stops it.")
}

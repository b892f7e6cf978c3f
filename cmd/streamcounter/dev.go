package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/node"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/internal/wording"
	"github.com/streamcounter/streamcounter/windows"
)

//go:embed example_rules.yml
var exampleRules []byte

// devParts are the parts of work and of serve.
var devParts = slices.Concat(workParts, []node.Part{node.Checks, node.Page})

func newDev() *cobra.Command {
	c := settings.New()
	c.Redis.URL = fmt.Sprint("embedded:", backend.DevRedisPort)
	c.NATS.URL = fmt.Sprint("embedded:", backend.DevNATSPort)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with embedded Redis and NATS",
		Long: `Runs everything in one process: embedded Redis, embedded NATS with JetStream,
workers, and the HTTP and gRPC interfaces, with example rules. Nothing is kept when
it ends. The embedded Redis (miniredis) is for trying things out; with many callers
it answers half as many checks as a real one.

--redis URL and --nats URL choose real servers. They are read from the command line
only, not from the environment. A prefix that other processes use with other rules is
refused.`,
		Example: `  streamcounter dev
  streamcounter dev --rules my-rules.yml
  streamcounter dev --redis redis://127.0.0.1:6379 --nats embedded:14222`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			example, err := windows.Parse("example_rules.yml (built in)", exampleRules)
			if err != nil {
				return err
			}
			welcome := func(s node.Started) { welcome(cmd.OutOrStdout(), c.Rules.Words(), s) }
			return runNode(cmd, c, node.Role{Parts: devParts, Example: example, Ready: welcome, Alone: true})
		},
	}
	c.FlagsOnly = []string{"redis", "nats"}
	c.Flags(cmd, "redis", "nats", "jetstream", "rules", "listen", "grpc", "checks", "stream", "work", "sinks",
		"process")
	return cmd
}

// shownRules is how many rules are shown at most.
const shownRules = 20

// welcome prints where each part listens and what to try. rules names the files of rules.
func welcome(w io.Writer, rules string, s node.Started) {
	redis, nats := redact.URL(s.Redis), redact.URL(s.NATS)
	fmt.Fprintf(w, "streamcounter runs.\n  Redis    %s\n  NATS     %s\n%s  rules    %s\n", redis, nats,
		s.Addresses, cmp.Or(rules, "built-in example"))
	list := s.Rules.List()
	for _, r := range list[:min(len(list), shownRules)] {
		fmt.Fprintf(w, "    %s\n", wording.Rule(r))
	}
	if more := len(list) - shownRules; more > 0 {
		fmt.Fprintf(w, "    and %d more\n", more)
	}
	fmt.Fprintln(w, "\nTry, in another terminal:")
	if key, limit := exampleKey(s.Rules); key != "" {
		cost := max(1, limit*6/10) // a second call is denied
		token := ""
		if s.Tokens {
			token = `-H "Authorization: Bearer $TOKEN" `
		}
		fmt.Fprintf(w, "  curl -i %s%s\n", token, quote(fmt.Sprintf("%s/v1/check?key=%s&cost=%d", s.HTTP,
			url.QueryEscape(key), cost)))
		fmt.Fprintf(w, "  redis-cli -u %s XADD %s '*' key %s count %d\n",
			redis, s.Keys.Events(s.Keys.Partition(key)), quote(key), max(1, limit/2))
	}
	fmt.Fprintf(w, "  streamcounter watch --nats %s\n\nCtrl-C stops it.\n", nats)
}

// exampleKey returns a key that a rule matches, and the smallest limit of that rule. The key is empty if no pattern
// allows one.
func exampleKey(rules *windows.Rules) (key string, limit int64) {
	for _, r := range rules.List() {
		stars := "42"
		if r.Match == "*" {
			stars = "user:42"
		}
		key := strings.NewReplacer("*", stars, "?", "4").Replace(r.Match)
		if plan := rules.Match(key); api.ValidateKey(key) == nil && plan != nil && plan.Live == r {
			return key, r.Smallest()
		}
	}
	return "", 0
}

func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !strings.ContainsRune(plainRunes, r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

const plainRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%"

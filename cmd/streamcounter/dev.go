package main

import (
	_ "embed"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/windows"
)

//go:embed example_rules.yml
var exampleRules []byte

func newDev() *cobra.Command {
	c := newConfig()
	c.Redis.URL, c.NATS.URL = "embedded:16379", "embedded:14222"
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with embedded Redis and NATS",
		Long: `Runs the whole of streamcounter in one process: an embedded Redis, an embedded
NATS with JetStream, the consumers and the HTTP interface, with example rules.
Nothing is kept when it ends. The embedded Redis (miniredis) is for trying
things out: about a quarter of a real one's speed. With --redis URL or --nats URL
the real ones are used: only as flags, the environment does not choose them. A prefix
that other processes use with other rules is refused.`,
		Example: `  streamcounter dev
  streamcounter dev --rules my-rules.yml
  streamcounter dev --redis redis://127.0.0.1:6379 --nats embedded:14222`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			example, err := windows.Parse("example_rules.yml (built in)", exampleRules)
			if err != nil {
				return err
			}
			welcome := func(n *node) { welcome(cmd.OutOrStdout(), n) }
			return role{parts: devParts, example: example, ready: welcome, alone: true}.run(cmd, c)
		},
	}
	c.flagsOnly = []string{"redis", "nats"}
	c.flags(cmd, "redis", "nats", "jetstream", "rules", "listen", "grpc", "checks", "stream", "work", "sinks",
		"process")
	return cmd
}

// welcome says where each part listens and what to try.
func welcome(w io.Writer, n *node) {
	rules := n.config.Rules.File
	if rules == "" {
		rules = "built-in example: user:* 100 per 10s and 1,000 per 1h; ip:* 300 per 1m; tenant:* 20 per 1s (shadow)"
	}
	if l := n.limits(); l != nil {
		rules += fmt.Sprintf("; %d limits of %s", l.Len(), n.config.Rules.Limits)
	}
	base, redis, nats := n.baseURL(), redact.URL(n.redisURL), redact.URL(n.natsURL)
	fmt.Fprintf(w, "streamcounter runs.\n  Redis    %s\n  NATS     %s\n%s  rules    %s\n\n", redis, nats,
		n.servedAt(), rules)
	fmt.Fprintln(w, "Try, in another terminal:")
	if key, limit := exampleKey(n.rules.Rules()); key != "" {
		cost := max(1, limit*6/10) // a second call is denied
		fmt.Fprintf(w, "  curl -i %s\n", quote(fmt.Sprintf("%s/v1/check?key=%s&cost=%d", base, url.QueryEscape(key),
			cost)))
		fmt.Fprintf(w, "  redis-cli -u %s XADD %s '*' key %s count %d\n",
			redis, n.keys.Events(n.keys.Partition(key)), quote(key), max(1, limit/2))
	}
	fmt.Fprintf(w, "  streamcounter watch --nats %s\n\nCtrl-C stops it.\n", nats)
}

// exampleKey gives a key that a rule matches, and the smallest limit of that rule.
// The key is empty where no pattern gives one.
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

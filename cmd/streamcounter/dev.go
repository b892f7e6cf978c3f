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
	"github.com/streamcounter/streamcounter/internal/wording"
	"github.com/streamcounter/streamcounter/windows"
)

//go:embed example_rules.yml
var exampleRules []byte

// Ports of the embedded servers, which a real one beside them does not use.
const devRedis, devNATS = 16379, 14222

// besideDev is a hint for a command that found no server where its flag says by default: dev has other ports.
func besideDev(flag, target string) string {
	def := newConfig()
	switch {
	case flag == "redis" && target == def.Redis.URL:
		return fmt.Sprintf("; beside `streamcounter dev` give --redis redis://%s", loopback(devRedis))
	case flag == "nats" && target == def.NATS.URL:
		return fmt.Sprintf("; beside `streamcounter dev` give --nats nats://%s", loopback(devNATS))
	}
	return ""
}

func newDev() *cobra.Command {
	c := newConfig()
	c.Redis.URL, c.NATS.URL = fmt.Sprint("embedded:", devRedis), fmt.Sprint("embedded:", devNATS)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with embedded Redis and NATS",
		Long: `Runs everything in one process: embedded Redis, embedded NATS with JetStream,
workers, and the HTTP and gRPC interfaces, with example rules. Nothing is kept when
it ends. The embedded Redis (miniredis) is for trying things out; it has about a
quarter of the speed of a real one.

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
			welcome := func(n *node) { welcome(cmd.OutOrStdout(), n) }
			return role{parts: devParts, example: example, ready: welcome, alone: true}.run(cmd, c)
		},
	}
	c.flagsOnly = []string{"redis", "nats"}
	c.flags(cmd, "redis", "nats", "jetstream", "rules", "listen", "grpc", "checks", "stream", "work", "sinks",
		"process")
	return cmd
}

// shownRules is how many rules are shown at most.
const shownRules = 20

// welcome says where each part listens and what to try.
func welcome(w io.Writer, n *node) {
	rules := n.config.Rules.words()
	if rules == "" {
		rules = "built-in example"
	}
	base, redis, nats := n.baseURL(), redact.URL(n.redisURL), redact.URL(n.natsURL)
	fmt.Fprintf(w, "streamcounter runs.\n  Redis    %s\n  NATS     %s\n%s  rules    %s\n", redis, nats,
		n.servedAt(), rules)
	list := n.rules.Rules().List()
	for _, r := range list[:min(len(list), shownRules)] {
		fmt.Fprintf(w, "    %s\n", wording.Rule(r))
	}
	if more := len(list) - shownRules; more > 0 {
		fmt.Fprintf(w, "    and %d more\n", more)
	}
	fmt.Fprintln(w, "\nTry, in another terminal:")
	if key, limit := exampleKey(n.rules.Rules()); key != "" {
		cost := max(1, limit*6/10) // a second call is denied
		token := ""
		if n.tokens != nil {
			token = `-H "Authorization: Bearer $TOKEN" `
		}
		fmt.Fprintf(w, "  curl -i %s%s\n", token, quote(fmt.Sprintf("%s/v1/check?key=%s&cost=%d", base,
			url.QueryEscape(key), cost)))
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

package main

import (
	"cmp"
	_ "embed"
	"encoding/json"
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
	if key, rule := exampleKey(s.Rules); rule != nil {
		tryRule(w, redis, key, rule, s)
	}
	fmt.Fprintf(w, "  streamcounter watch --nats %s\n\nCtrl-C stops it.\n", nats)
}

// tryRule prints a check of the key, or a reservation if the rule takes only those, and an event if the rule counts
// events.
func tryRule(w io.Writer, redis, key string, rule *windows.Rule, s node.Started) {
	limit, query, event := min(rule.Smallest(), api.MaxCount), "", ""
	var fields []string
	for _, window := range rule.Windows {
		if field := window.Distinct; field != "" && !slices.Contains(fields, field) {
			fields = append(fields, field)
			query += "&value=" + url.QueryEscape(field+"=alice")
			event += " " + field + " alice"
			limit = 1 // other values are denied, not a second call
		}
	}
	cost := max(1, limit*6/10) // a second call is denied
	curl := "curl -i "
	if s.Tokens {
		curl += `-H "Authorization: Bearer $TOKEN" `
	}
	if rule.InFlight() > 0 {
		body, _ := json.Marshal(api.CheckRequest{Key: key, Cost: cost}) // text and a number: it cannot fail
		fmt.Fprintf(w, "  %s-d %s %s/v1/reservations\n", curl, quote(string(body)), s.HTTP)
	} else {
		fmt.Fprintf(w, "  %s%s\n", curl, quote(fmt.Sprintf("%s/v1/check?key=%s&cost=%d%s", s.HTTP,
			url.QueryEscape(key), cost, query)))
	}
	if rule.Charges() {
		fmt.Fprintf(w, "  redis-cli -u %s XADD %s '*' key %s count %d%s\n",
			redis, s.Keys.Events(s.Keys.Partition(key)), quote(key), max(1, limit/2), event)
	}
}

// exampleKey returns a key and the rule that matches it. The rule is nil if no pattern allows a key.
func exampleKey(rules *windows.Rules) (key string, rule *windows.Rule) {
	for _, r := range rules.List() {
		stars := "42"
		if r.Match == "*" {
			stars = "user:42"
		}
		key := strings.NewReplacer("*", stars, "?", "4").Replace(r.Match)
		if plan := rules.Match(key); api.ValidateKey(key) == nil && plan != nil && plan.Live == r {
			return key, r
		}
	}
	return "", nil
}

func quote(word string) string {
	if word != "" && strings.Trim(word, plainRunes) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

const plainRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%"

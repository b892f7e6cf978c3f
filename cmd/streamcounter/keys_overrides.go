package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/internal/logging"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// overrideCommands returns the commands of `keys` that set, remove and list what operators have set.
func overrideCommands() []*cobra.Command {
	return []*cobra.Command{
		setCommand("block KEY", "Deny every check of a key",
			"  streamcounter keys block user:42 --for 1h --reason 'too many failed logins'",
			func([]string) (map[string]any, error) { return map[string]any{"block": true}, nil }),
		setCommand("exempt KEY", "Admit every check of a key; what it spends is counted",
			"  streamcounter keys exempt tenant:acme --until 2026-12-01",
			func([]string) (map[string]any, error) { return map[string]any{"exempt": true}, nil }),
		limitCommand(),
		setCommand("tier KEY RULE", "Assign a key to another rule",
			"  streamcounter keys tier user:42 gold",
			func(args []string) (map[string]any, error) { return map[string]any{"rule": args[0]}, nil }),
		removeCommand("clear KEY", "Remove the block, exemption, limit or tier of a key",
			"  streamcounter keys clear user:42 --reason 'talked to them'", "%s: the override is removed\n",
			clearOverride),
		removeCommand("unblock KEY", "Remove the block of a key",
			"  streamcounter keys unblock user:42 --reason 'talked to them'", "%s is no longer blocked\n", unblock),
		newOverrides(),
	}
}

// limitCommand returns the command that sets limits. They replace the windows of the same length, or all windows.
func limitCommand() *cobra.Command {
	var all bool
	cmd := setCommand("limit KEY LIMIT/SPAN...", "Give a key other limits than its rule",
		"  streamcounter keys limit user:42 500/1m 20000/1d --until 2026-12-01T09:00:00Z\n"+
			"  streamcounter keys limit user:42 500/1m --all",
		func(limits []string) (map[string]any, error) {
			list, err := windowsOf(limits)
			body := map[string]any{"windows": list}
			if all {
				body["only"] = true
			}
			return body, err
		})
	cmd.Long = "Gives a key other limits than its rule. Each LIMIT/SPAN replaces the rule's window of the same\n" +
		"SPAN, or is added; the other windows stay. With --all they are replaced too, but for those that\n" +
		"count different values. The counts do not change."
	cmd.Flags().BoolVar(&all, "all", false, "replace all windows of the rule but those of values")
	return cmd
}

func windowsOf(limits []string) ([]api.OverrideWindow, error) {
	out := make([]api.OverrideWindow, len(limits))
	for i, text := range limits {
		limit, per, ok := strings.Cut(text, "/")
		n, err := strconv.ParseInt(limit, 10, 64)
		if err != nil || !ok || per == "" {
			return nil, settings.UsageErrorf("%q: expected LIMIT/SPAN, for example 500/1m", text)
		}
		out[i] = api.OverrideWindow{Limit: n, Per: per}
	}
	return out, nil
}

// setCommand returns a command that sets an override: what returns its body, from the arguments after the key.
func setCommand(use, short, example string, what func(args []string) (map[string]any, error),
) *cobra.Command {
	c := settings.New()
	var lasts, until, reason string
	var asJSON, yes bool
	cmd := &cobra.Command{Use: use, Short: short, Example: example,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := what(args[1:])
			if err != nil {
				return err
			}
			for name, value := range map[string]string{"for": lasts, "until": until, "reason": reason} {
				if value != "" {
					body[name] = value
				}
			}
			if err := confirmSeveral(cmd, c, args[0], body, yes); err != nil {
				return err
			}
			var set api.OverrideSet
			text, err := askFor(cmd, c, http.MethodPut, overridePath(args[0]), body, &set)
			if err != nil {
				return err
			}
			for _, warning := range set.Warnings {
				fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", warning)
			}
			if asJSON {
				printJSON(cmd.OutOrStdout(), text)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", set.Target(), overrideText(set.Override))
			printEffect(cmd.OutOrStdout(), set.OverrideEffect)
			return nil
		}}
	c.Flags(cmd, "http", "caller")
	f := cmd.Flags()
	f.StringVar(&lasts, "for", "", "how long it lasts, such as 90s, 1h or 7d; empty: until it is cleared")
	f.StringVar(&until, "until", "", "when it ends instead: 2026-12-01T09:00:00Z, or a date (its beginning, UTC)")
	f.StringVar(&reason, "reason", "", "why; answers, decisions and the history show it")
	f.BoolVar(&asJSON, "json", false, "print the server's answer")
	f.BoolVar(&yes, "yes", false, "do not ask before a pattern or a network is set")
	return cmd
}

// confirmSeveral prints how many keys a pattern or a network covers, and asks whether to go on. On a terminal it asks
// the user; otherwise --yes is required.
func confirmSeveral(cmd *cobra.Command, c *settings.Config, target string, body map[string]any, yes bool) error {
	_, several, err := api.ParseTarget(target)
	switch {
	case err != nil:
		return settings.UsageError{Err: err}
	case several == "":
		return nil
	}
	var would api.OverrideSet
	if _, err := askFor(cmd, c, http.MethodPut, overridePath(target)+"?dry_run=true", body, &would); err != nil {
		return err
	}
	covers := cmp.Or(would.Covers, &api.Covered{})
	more := ""
	if covers.AtLeast {
		more = "at least "
	}
	messages := cmd.ErrOrStderr()
	fmt.Fprintf(messages, "%s covers %s%s, %d of them throttled now, and all that come later\n",
		would.Target(), more, english.Plural(covers.Keys, "known key"), covers.Throttled)
	if covers.Keys == 0 && !covers.AtLeast {
		form := "" // a network without the prefix of the keys fits none
		if slash := strings.LastIndexByte(would.Network, '/'); slash >= 0 {
			form = ", which is for keys such as " + would.Network[:slash]
		}
		fmt.Fprintf(messages, "warning: no known key fits %s%s\n", would.Target(), form)
	}
	if yes {
		return nil
	}
	if !logging.IsTerminal(cmd.InOrStdin()) {
		return fmt.Errorf("nothing is set: %s covers several keys; give --yes to set it without a question", target)
	}
	fmt.Fprint(messages, "Set it? [y/N] ")
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && answer == "" {
		return fmt.Errorf("nothing is set: reading the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing is set")
	}
	return nil
}

// printEffect prints which windows of the rule an override replaces, and which stay.
func printEffect(w io.Writer, e api.OverrideEffect) {
	if len(e.Replaces) > 0 {
		fmt.Fprintf(w, "  replaces %s of rule %s\n", strings.Join(e.Replaces, ", "), e.MatchedRule)
	}
	if len(e.Keeps) > 0 {
		fmt.Fprintf(w, "  keeps %s of rule %s\n", strings.Join(e.Keeps, ", "), e.MatchedRule)
	}
}

// removeCommand returns a command that removes something that is set for a key, and then prints done with the key.
func removeCommand(use, short, example, done string,
	remove func(cmd *cobra.Command, c *settings.Config, target, reason string) error) *cobra.Command {
	c := settings.New()
	var reason string
	cmd := &cobra.Command{Use: use, Short: short, Example: example,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := remove(cmd, c, args[0], reason); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), done, args[0])
			return nil
		}}
	c.Flags(cmd, "http", "caller")
	cmd.Flags().StringVar(&reason, "reason", "", "why; the history shows it")
	return cmd
}

// unblock removes the override of a target if it is a block.
func unblock(cmd *cobra.Command, c *settings.Config, target, reason string) error {
	var one api.Override
	status, text, err := ask(cmd.Context(), c, http.MethodGet, overridePath(target), nil)
	if err != nil {
		return err
	}
	if status == http.StatusNotFound {
		return notBlocked(cmd, c, target)
	}
	if err := readAnswer(status, text, &one); err != nil {
		return err
	}
	if !one.Block {
		return fmt.Errorf("%s is not blocked: %s; `keys clear` removes that", target, overrideText(one))
	}
	return clearOverride(cmd, c, target, reason)
}

// notBlocked returns the error for a target that has no block of its own. A pattern or a network may still block the
// key.
func notBlocked(cmd *cobra.Command, c *settings.Config, target string) error {
	var state api.KeyState
	if key, several, err := api.ParseTarget(target); err == nil && several == "" {
		_, err := askFor(cmd, c, http.MethodGet, keyPath(key), nil, &state)
		if o := state.Override; err == nil && o != nil && o.Block {
			return fmt.Errorf("%s has no block of its own: %s blocks it; `keys unblock '%s'` ends that for all its "+
				"keys, `keys exempt %s` for this one", target, o.Target(), o.Target(), target)
		}
	}
	return fmt.Errorf("%s is not blocked", target)
}

func overridePath(target string) string { return "/v1/overrides/" + url.PathEscape(target) }

// askFor sends a request to the server and reads its answer, or returns its error.
func askFor(cmd *cobra.Command, c *settings.Config, method, path string, body, into any) ([]byte, error) {
	status, text, err := ask(cmd.Context(), c, method, path, body)
	if err != nil {
		return nil, err
	}
	return text, readAnswer(status, text, into)
}

// readAnswer reads an answer of the server, or returns its error. Each answer of ours has a field that is not empty.
func readAnswer(status int, text []byte, into any) error {
	if status != http.StatusOK {
		return problemFrom(status, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if reflect.ValueOf(into).Elem().IsZero() {
		return errors.New("the answer has no field that is expected: is this a streamcounter server?")
	}
	return nil
}

// clearOverride removes what is set for a target; it returns an error if nothing is set.
func clearOverride(cmd *cobra.Command, c *settings.Config, target, reason string) error {
	var answer struct {
		Key, Pattern, Network string
		Cleared               bool
	}
	path := overridePath(target)
	if reason != "" {
		path += "?reason=" + url.QueryEscape(reason)
	}
	if _, err := askFor(cmd, c, http.MethodDelete, path, nil, &answer); err != nil {
		return err
	}
	if !answer.Cleared {
		return fmt.Errorf("%s has no override", target)
	}
	return nil
}

func newOverrides() *cobra.Command {
	cmd := &cobra.Command{Use: "overrides", Short: "List what operators have set for keys and patterns",
		Example: "  streamcounter keys overrides --json | jq .key"}
	type page = api.Overrides
	listPages(cmd, "/v1/overrides?limit=1000", func(p page) ([]api.Override, string) { return p.Overrides, p.Next },
		func(o api.Override) string { return o.Target() + "\t" + overrideText(o) })
	return cmd
}

func newThrottled() *cobra.Command {
	cmd := &cobra.Command{Use: "throttled", Short: "List who is at or over a limit or blocked now, and why",
		Example: "  streamcounter keys throttled"}
	type page struct {
		Throttled []api.Throttled `json:"throttled"`
		Next      string          `json:"next"`
	}
	listPages(cmd, "/v1/throttled?limit=1000", func(p page) ([]api.Throttled, string) { return p.Throttled, p.Next },
		func(t api.Throttled) string { return t.Key + "\t" + throttledText(t) })
	return cmd
}

// listPages makes cmd print the items of all pages, the first of which is at path. It prints one item per line: the
// text that line gives, or JSON with --json. items gives the items of a page and the `after` of the next page, which is
// empty at the end.
func listPages[P, T any](cmd *cobra.Command, path string, items func(page P) (list []T, next string),
	line func(T) string) {
	c := settings.New()
	var asJSON bool
	c.Flags(cmd, "http", "caller")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		for at := path; ; {
			var page P
			if _, err := askFor(cmd, c, http.MethodGet, at, nil, &page); err != nil {
				return errors.Join(err, w.Flush())
			}
			list, next := items(page)
			for _, item := range list {
				if !asJSON {
					fmt.Fprintln(w, line(item))
				} else if err := json.NewEncoder(cmd.OutOrStdout()).Encode(item); err != nil {
					return err
				}
			}
			if next == "" {
				return w.Flush()
			}
			at = path + "&after=" + url.QueryEscape(next)
		}
	}
}

// throttledText returns why a key is throttled, since when and until when.
func throttledText(t api.Throttled) string {
	what := "blocked by an operator"
	if !t.IsBlock() {
		what = fmt.Sprintf("rule %s: %s", t.Rule, useText(t.Used, t.Limit,
			countedPer(t.Distinct, "per ")+cmp.Or(t.Period(), millis(t.WindowMs)), t.InFlight))
	} else if t.Reason != "" {
		what += ": " + t.Reason
	}
	if t.Shadow {
		what += " (shadow)"
	}
	what += inForceText(t.InForce) + "\tsince " + timeText(t.SinceMs)
	if t.UntilMs > 0 {
		what += "\tuntil " + timeText(t.UntilMs)
	}
	return what
}

// overrideText describes an override without its key.
func overrideText(o api.Override) string {
	var what string
	switch o.Kind() {
	case "block":
		what = "blocked"
	case "exempt":
		what = "exempt"
	case "rule":
		what = "rule " + o.Rule
	default:
		list := make([]string, len(o.Windows))
		for i, w := range o.Windows {
			list[i] = fmt.Sprintf("%d/%s", w.Limit, w.Per)
		}
		what = "limit " + strings.Join(list, " ")
		if o.Only {
			what += " alone"
		}
	}
	if o.UntilMs > 0 {
		what += " until " + timeText(o.UntilMs)
	}
	return what + byText(o.By, o.Reason)
}

// byText returns who has set or removed an override, and why, as the end of a line.
func byText(by, reason string) (text string) {
	if by != "" {
		text = ", by " + by
	}
	if reason != "" {
		text += ", " + reason
	}
	return text
}

func changeText(c api.OverrideChange) string {
	if c.After != nil {
		return "override: " + overrideText(*c.After)
	}
	return "override removed" + byText(c.By, c.Reason)
}

func blockText(a api.CheckAnswer) string {
	text := "blocked by an operator"
	if a.Reason != "" {
		text += " (" + a.Reason + ")"
	}
	if a.RetryAfterMs > 0 {
		text += ", retry " + in(a.RetryAfterMs)
	}
	return text
}

func timeText(ms int64) string { return time.UnixMilli(ms).Local().Format("2006-01-02 15:04:05 MST") }

package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
)

// Exit codes of `check`.
const (
	exitDenied = 1
	exitError2 = 2
)

func newCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check KEY [COST]",
		Short: "Ask whether a key may spend now, and charge it if so",
		Long:  "Asks a running server (--http) whether KEY may spend COST units (1 if not given) and charges them if it may.\nExit code: 0 allowed, 1 denied, 2 error.",
		Example: `  streamcounter check user:42
  streamcounter check user:42 5 --json
  streamcounter check user:42 && ./send-mail`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{"key": {args[0]}}
			if len(args) == 2 {
				q.Set("cost", args[1])
			}
			status, body, err := ask(cmd, http.MethodGet, "/v1/check?"+q.Encode())
			if err != nil {
				return exitError{exitError2, err}
			}
			if status != http.StatusOK && status != http.StatusTooManyRequests {
				return exitError{exitError2, problemFrom(status, body)}
			}
			var a api.CheckAnswer
			if err := json.Unmarshal(body, &a); err != nil {
				return exitError{exitError2, fmt.Errorf("reading the answer: %w", err)}
			}
			if !printJSON(cmd, body) {
				switch {
				case a.Note != "":
					fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", verdictWord(a.Allowed), a.Note)
				case a.Allowed:
					fmt.Fprintf(cmd.OutOrStdout(), "allowed by rule %s (%s)\n", a.Rule, a.Source)
				default:
					fmt.Fprintf(cmd.OutOrStdout(), "denied by rule %s (%s), again in %s\n", a.Rule, a.Source, millis(a.RetryAfterMs))
				}
				printWindows(cmd.OutOrStdout(), a.Windows)
			}
			if !a.Allowed {
				return exitError{code: exitDenied}
			}
			return nil
		},
	}
	use(cmd, askSettings)
	cmd.Flags().Bool("json", false, "print the server's answer")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exitError{exitError2, err} })
	return cmd
}

func newKeys() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys KEY",
		Short: "Show where a key stands, or reset it",
		Example: `  streamcounter keys ip:203.0.113.9
  streamcounter keys user:42 --json
  streamcounter keys user:42 --reset`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			method := http.MethodGet
			if reset, _ := cmd.Flags().GetBool("reset"); reset {
				method = http.MethodDelete
			}
			status, body, err := ask(cmd, method, "/v1/keys/"+url.PathEscape(args[0]))
			if err != nil {
				return err
			}
			if status != http.StatusOK {
				return problemFrom(status, body)
			}
			if printJSON(cmd, body) {
				return nil
			}
			if method == http.MethodDelete {
				fmt.Fprintf(cmd.OutOrStdout(), "%s is reset\n", args[0])
				return nil
			}
			var s api.KeyState
			if err := json.Unmarshal(body, &s); err != nil {
				return fmt.Errorf("reading the answer: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s, rule %s\n", s.Key, s.Rule)
			printWindows(cmd.OutOrStdout(), s.Windows)
			return nil
		},
	}
	use(cmd, askSettings)
	cmd.Flags().Bool("json", false, "print the server's answer")
	cmd.Flags().Bool("reset", false, "forget what the key has spent and end its levels")
	return cmd
}

func newHealth() *cobra.Command {
	cmd := &cobra.Command{
		Use: "health", Short: "Exit 0 if the server at --http is ready (for container health checks)", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, body, err := ask(cmd, http.MethodGet, "/readyz")
			if err != nil {
				return err
			}
			if status != http.StatusOK {
				return problemFrom(status, body)
			}
			return nil
		},
	}
	use(cmd, append(askSettings, "tls-cert"))
	return cmd
}

// askSettings are those of a command that asks a server.
var askSettings = []string{"http", "token", "http-ca", "http-cert", "http-key"}

// ask sends one request to the server at --http.
func ask(cmd *cobra.Command, method, path string) (status int, body []byte, err error) {
	o := options{cmd: cmd}
	base := o.text("http")
	config, err := askTLS(&o)
	if err != nil {
		return 0, nil, err
	}
	if !strings.Contains(base, "://") {
		scheme := "http://"
		if config != nil {
			scheme = "https://"
		}
		base = scheme + strings.Replace(base, "0.0.0.0", "127.0.0.1", 1)
	}
	req, err := http.NewRequestWithContext(cmd.Context(), method, strings.TrimSuffix(base, "/")+path, nil)
	if err != nil {
		return 0, nil, blame("http", err)
	}
	if token := o.text("token"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, blame("http", fmt.Errorf("no server answers at %s (`streamcounter dev` or `serve` runs one): %w", base, err))
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return resp.StatusCode, body, err
}

// askTLS is how the server at --http is spoken to, nil where nothing says that it
// is by TLS. Where --tls-cert is set, as in a container whose health is asked
// for, the server must show just that certificate, whatever names stand in it.
func askTLS(o *options) (*tls.Config, error) {
	own := ""
	if o.cmd.Flags().Lookup("tls-cert") != nil {
		own = o.text("tls-cert")
	}
	files := o.clientFiles("http")
	if !files.given() && own == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if own != "" {
		content, err := os.ReadFile(own)
		if err != nil {
			return nil, blame("tls-cert", err)
		}
		block, _ := pem.Decode(content)
		c.InsecureSkipVerify = true // VerifyConnection does it
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if block == nil || !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
				return fmt.Errorf("the server shows another certificate than %s", own)
			}
			return nil
		}
	}
	return c, files.apply(c)
}

func problemFrom(status int, body []byte) error {
	var p api.Problem
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		return errors.New(p.Detail)
	}
	return fmt.Errorf("the server answered %d %s", status, http.StatusText(status))
}

func printJSON(cmd *cobra.Command, body []byte) bool {
	asJSON, _ := cmd.Flags().GetBool("json")
	if asJSON {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n", bytes.TrimSpace(body))
	}
	return asJSON
}

func printWindows(w io.Writer, list []api.WindowState) {
	for _, s := range list {
		fmt.Fprintf(w, "  %d of %d used per %s, %d remaining, empty in %s\n", s.Used, s.Limit, millis(s.WindowMs), s.Remaining, millis(s.ResetMs))
	}
}

func verdictWord(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

func millis(ms int64) string {
	if ms == 0 {
		return "0s"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

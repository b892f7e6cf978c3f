package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

// ask sends one request to the server at --http; content, if it is not nil, as JSON.
func ask(ctx context.Context, c *settings.Config, method, path string, content any) (status int, body []byte,
	err error) {
	var reader io.Reader
	if content != nil {
		text, err := json.Marshal(content)
		if err != nil {
			return 0, nil, err
		}
		reader = bytes.NewReader(text)
	}
	base := c.HTTP
	config, err := askTLS(c)
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
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base, "/")+path, reader)
	if err != nil {
		return 0, nil, settings.Blame("http", redact.Error(err))
	}
	if content != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Caller.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Caller.Token)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: config,
		DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // the token is for this server alone
		}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, settings.Blame("http", fmt.Errorf(
			"no server answers at %s (`streamcounter dev` or `serve` runs one): %w", redact.URL(base),
			redact.Error(err)))
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		if c.Caller.Token == "" {
			return 0, nil, errors.New("token required: set " + settings.EnvName("token"))
		}
		return 0, nil, settings.Blame("token", fmt.Errorf("the server at %s does not know this token",
			redact.URL(base)))
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return resp.StatusCode, body, err
}

// askTLS returns the TLS configuration for the server at --http, or nil if no flag says that the server uses TLS. If
// --tls-cert is set (for example for the health check in a container), the server must present exactly that
// certificate, whatever names are in it.
func askTLS(cfg *settings.Config) (*tls.Config, error) {
	own, files := cfg.Access.Cert, cfg.Caller.TLS
	if !files.Given() && own == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if own != "" {
		content, err := os.ReadFile(own)
		if err != nil {
			return nil, settings.Blame("tls-cert", err)
		}
		block, _ := pem.Decode(content)
		c.InsecureSkipVerify = true // VerifyConnection verifies in its place
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if block == nil || !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
				return fmt.Errorf("the server shows another certificate than %s", own)
			}
			return nil
		}
	}
	return c, files.Apply(c)
}

// problemFrom returns the error of an answer. The status 400 means that a word of the command line is wrong.
func problemFrom(status int, body []byte) error {
	var p api.Problem
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		switch named := api.ErrorNamed(p.Type); {
		case errors.Is(named, api.ErrOutcomeUnknown):
			p.Detail = fmt.Sprintf("%s (%s)", p.Title, p.Detail)
		case errors.Is(named, api.ErrUnavailable):
			p.Detail += "; the server's log has the reason, and `streamcounter doctor --redis URL` says how to fix it"
		}
		if status == http.StatusBadRequest {
			return settings.UsageErrorf("%s", p.Detail)
		}
		return errors.New(p.Detail)
	}
	answer := fmt.Sprintf("the server answered %d %s", status, http.StatusText(status))
	text := bytes.TrimSpace(body)
	if len(text) > 0 {
		answer += fmt.Sprintf(": %.200q", text)
	}
	if bytes.Contains(text, []byte("HTTPS")) {
		answer += "; give --http https://HOST:PORT, or --http-ca"
	}
	return errors.New(answer)
}

// printReport prints a report for people, or as JSON with this indentation ("": in one line).
func printReport(cmd *cobra.Command, report interface{ WriteText(io.Writer) error }, asJSON bool, indent string) error {
	if !asJSON {
		return report.WriteText(cmd.OutOrStdout())
	}
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	return encoder.Encode(report)
}

func printJSON(w io.Writer, body []byte) { fmt.Fprintf(w, "%s\n", bytes.TrimSpace(body)) }

func printWindows(w io.Writer, list []api.WindowState) {
	for _, s := range list {
		per := countedPer(s.Distinct, "used per ") + cmp.Or(s.Period(), millis(s.WindowMs))
		fmt.Fprintf(w, "  %s, %d remaining, empty %s\n", useText(s.Used, s.Limit, per, s.InFlight), s.Remaining,
			in(s.EmptyMs))
	}
}

// countedPer returns the words before the length of a window: those for a window of values, or else the other words.
func countedPer(distinct, other string) string {
	if distinct != "" {
		return fmt.Sprintf("values of %q per ", distinct)
	}
	return other
}

// useText returns the text for a window: "3 of 10" and its length, or "3 of 3 in flight".
func useText(used, limit int64, per string, inFlight bool) string {
	if inFlight {
		per = "in flight"
	}
	return fmt.Sprintf("%d of %d %s", used, limit, per)
}

// printInForce prints what is in force for a key besides its windows, on a separate line.
func printInForce(w io.Writer, f api.InForce) {
	if text := f.InForceText(timeText); text != "" {
		fmt.Fprintf(w, "  %s\n", text)
	}
}

// inForceText returns it as the end of a line.
func inForceText(f api.InForce) string {
	if text := f.InForceText(nil); text != "" {
		return ", " + text
	}
	return ""
}

// millis returns a duration as people write it in a rules file: 10m, 1d.
func millis(ms int64) string {
	return windows.FormatDuration(time.Duration(ms) * time.Millisecond)
}

// in returns when something happens, from now: "in 8.9s", or a date if it is more than a day away.
func in(ms int64) string {
	if ms > 24*time.Hour.Milliseconds() {
		return "on " + timeText(time.Now().UnixMilli()+ms)
	}
	return "in " + millis(ms)
}

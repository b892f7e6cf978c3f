package target

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/internal/redact"
)

type httpCaller struct {
	client *http.Client
	url    string
	token  string
}

func overHTTP(u *url.URL, c *Config) (func(int) caller, func()) {
	client := httpClient(c.TLS, c.Callers)
	one := &httpCaller{client, u.Scheme + "://" + u.Host + "/v1/check", c.Token}
	return func(int) caller { return one }, client.CloseIdleConnections
}

func httpClient(config *tls.Config, connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, TLSClientConfig: config},
		Timeout: 30 * time.Second}
}

// call sends one check as a GET. It sends several checks as a POST, in which each is decided separately.
func (h *httpCaller) call(ctx context.Context, keys []string) (a admitted, err error) {
	if len(keys) == 1 {
		status, body, err := h.send(ctx, http.MethodGet, h.url+"?key="+url.QueryEscape(keys[0]), nil)
		switch {
		case err != nil:
			return a, err
		case status == http.StatusOK && byOnError(body):
			return admitted{onError: 1}, nil
		case status == http.StatusOK:
			return admitted{byLimit: 1}, nil
		case status == http.StatusTooManyRequests:
			return a, nil
		}
		return a, fmt.Errorf("status %d: %.200s", status, body)
	}
	type check struct {
		Key string `json:"key"`
	}
	req := struct {
		Checks []check `json:"checks"`
		Each   bool    `json:"each"`
	}{make([]check, len(keys)), true}
	for i, k := range keys {
		req.Checks[i].Key = k
	}
	text, err := json.Marshal(req)
	if err != nil {
		return a, err
	}
	status, body, err := h.send(ctx, http.MethodPost, h.url, text)
	if err != nil {
		return a, err
	}
	if status != http.StatusOK {
		return a, fmt.Errorf("status %d: %.200s", status, body)
	}
	if !byOnError(body) {
		return admitted{byLimit: bytes.Count(body, []byte(`"allowed":true`))}, nil // cheaper than reading it all
	}
	var answer struct {
		Checks []struct {
			Allowed bool   `json:"allowed"`
			Source  string `json:"source"`
		} `json:"checks"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return a, fmt.Errorf("reading the answer: %w", err)
	}
	for _, c := range answer.Checks {
		switch {
		case c.Allowed && (c.Source == "policy" || c.Source == "local"):
			a.onError++
		case c.Allowed:
			a.byLimit++
		}
	}
	return a, nil
}

// byOnError reports whether on_error decided a check of an answer. No key can contain the text, because quotes in a
// key are escaped.
func byOnError(body []byte) bool {
	return bytes.Contains(body, []byte(`"source":"policy"`)) || bytes.Contains(body, []byte(`"source":"local"`))
}

func (h *httpCaller) send(ctx context.Context, method, url string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, redact.Error(err)
	}
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return 0, nil, redact.Error(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, text, err
}

// processCPU returns the CPU time that the server's process has used, from its metrics.
func processCPU(ctx context.Context, c *Config) (time.Duration, error) {
	h := &httpCaller{client: httpClient(c.TLS, 1), token: c.Token}
	defer h.client.CloseIdleConnections()
	status, body, err := h.send(ctx, http.MethodGet, c.Metrics, nil)
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("%s answers %d", redact.URL(c.Metrics), status)
	}
	// Only one line of a text format is needed. The package expfmt reads all of it, but needs a module that the proxy
	// does not serve.
	const name = "process_cpu_seconds_total "
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", redact.URL(c.Metrics), err)
			}
			return time.Duration(seconds * float64(time.Second)), nil
		}
	}
	return 0, fmt.Errorf("%s has no %s", redact.URL(c.Metrics), name)
}

package target

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/measure"
	"github.com/streamcounter/streamcounter/internal/redact"
)

type httpCaller struct {
	client *http.Client
	url    string
	token  string
}

func overHTTP(u *url.URL, c *Config) (callers []caller, closeAll func(), err error) {
	client := httpClient(c.TLS, c.Callers)
	one := &httpCaller{client, u.Scheme + "://" + u.Host + "/v1/check", c.Token}
	return slices.Repeat([]caller{one.call}, c.Callers), client.CloseIdleConnections, nil
}

func httpClient(config *tls.Config, connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, TLSClientConfig: config},
		Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse // a redirected check would be sent twice, and the token elsewhere
		}}
}

// call sends one check as a GET. It sends several checks as a POST, in which each is decided separately.
func (h *httpCaller) call(ctx context.Context, keys []string) (a admitted, err error) {
	if len(keys) > 1 {
		return h.several(ctx, keys)
	}
	status, body, err := h.send(ctx, http.MethodGet, h.url+"?key="+url.QueryEscape(keys[0]), nil,
		http.StatusTooManyRequests)
	switch {
	case err != nil || status == http.StatusTooManyRequests:
	case byOnError(body):
		a.onError = 1
	default:
		a.byLimit = 1
	}
	return a, err
}

func (h *httpCaller) several(ctx context.Context, keys []string) (a admitted, err error) {
	var checks []api.CheckRequest
	for _, k := range keys {
		checks = append(checks, api.CheckRequest{Key: k})
	}
	text, err := json.Marshal(map[string]any{"checks": checks, "each": true})
	if err != nil {
		return a, err
	}
	_, body, err := h.send(ctx, http.MethodPost, h.url, text)
	if err != nil {
		return a, err
	}
	if !byOnError(body) {
		return admitted{byLimit: bytes.Count(body, []byte(`"allowed":true`))}, nil // cheaper than reading it all
	}
	var answer struct{ Checks []api.CheckAnswer }
	if err := json.Unmarshal(body, &answer); err != nil {
		return a, fmt.Errorf("reading the answer: %w", err)
	}
	for _, c := range answer.Checks {
		switch {
		case c.Allowed && (c.Source == api.SourcePolicy || c.Source == api.SourceLocal):
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

// send returns an answer whose status is 200 or one of those that are wanted too.
func (h *httpCaller) send(ctx context.Context, method, url string, body []byte, wanted ...int) (int, []byte, error) {
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
	if err == nil && resp.StatusCode != http.StatusOK && !slices.Contains(wanted, resp.StatusCode) {
		err = fmt.Errorf("status %d: %.200s", resp.StatusCode, text)
	}
	return resp.StatusCode, text, err
}

// Only one line of a text format is needed. The package expfmt reads all of it, but needs a module that the proxy does
// not serve.
var processCPU = regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)`)

// serverCPU returns the CPU time that the server's process has used, from its metrics.
func (c *Config) serverCPU(ctx context.Context, _ redis.UniversalClient) (time.Duration, error) {
	if c.Metrics == "" {
		return 0, measure.ErrNotTold
	}
	h := &httpCaller{client: httpClient(c.TLS, 1), token: c.Token}
	defer h.client.CloseIdleConnections()
	_, body, err := h.send(ctx, http.MethodGet, c.Metrics, nil)
	var seconds float64
	if m := processCPU.FindSubmatch(body); m != nil && err == nil {
		seconds, err = strconv.ParseFloat(string(m[1]), 64)
	} else if err == nil {
		err = errors.New("it has no process_cpu_seconds_total")
	}
	if err != nil {
		return 0, fmt.Errorf("reading the server's CPU from %s: %w", redact.URL(c.Metrics), err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

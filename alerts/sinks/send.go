package sinks

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	// The library of Standard Webhooks itself, maintained by the authors of the specification. Receivers verify with
	// it or with its counterparts in other languages. It has no dependencies.
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redact"
)

type signer = *standardwebhooks.Webhook

// Bounds of a secret, in bytes, as Standard Webhooks requires.
const minSecret, maxSecret = 24, 64

// signers reads the secrets of a file, one per line. While a secret is being replaced, each request is signed by both
// secrets.
func signers(file string) (list []signer, err error) {
	for line := range strings.Lines(file) {
		line = strings.TrimSpace(line)
		s, err := standardwebhooks.NewWebhook(line)
		bare, prefixed := strings.CutPrefix(line, "whsec_")
		if size := len(bare) / 4 * 3; err != nil || !prefixed || size < minSecret || size > maxSecret+2 {
			return nil, fmt.Errorf("want whsec_ and %d to %d bytes in base64 on each line "+
				"(as printf whsec_; openssl rand -base64 32)", minSecret, maxSecret)
		}
		list = append(list, s)
	}
	if len(list) == 0 || len(list) > 3 {
		return nil, errors.New("want 1 to 3 secrets in the file, one a line")
	}
	return list, nil
}

// newHTTP returns the client of one endpoint. It verifies the server's certificate. It follows no redirect, because
// that would send an alert and its signature to a server that nobody configured.
func newHTTP(timeout time.Duration, ca string) (*http.Client, error) {
	transport := &http.Transport{
		Proxy:           http.ProxyFromEnvironment,
		DialContext:     (&net.Dialer{Timeout: timeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: timeout,
		MaxConnsPerHost: maxAttempts, MaxIdleConnsPerHost: maxAttempts, IdleConnTimeout: 30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true, DisableCompression: true,
	}
	if ca != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(ca)) {
			return nil, errors.New("want CA certificates (PEM) in the file")
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// refusal is an answer that is not a success.
type refusal struct {
	status int
	text   string        // the beginning of the answer, for the log
	after  time.Duration // from Retry-After; 0: the answer has none
}

func (r refusal) Error() string {
	if r.text == "" {
		return "the endpoint answered " + strconv.Itoa(r.status)
	}
	return fmt.Sprintf("the endpoint answered %d: %q", r.status, r.text)
}

// final reports whether the endpoint will never take this alert, according to its status. Other statuses of 4xx (401,
// 404) are a mistake that somebody can fix, so the alert waits.
func (r refusal) final() bool {
	switch r.status {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// event is the body of a webhook, as Standard Webhooks recommends.
type event struct {
	Type      string         `json:"type"` // alert.raised or alert.cleared
	Timestamp time.Time      `json:"timestamp"`
	Text      string         `json:"text"`
	Data      api.Transition `json:"data"`
}

// deliver makes one attempt to send an alert. An answer that is not a success is a refusal. No error contains a
// secret. since is when the alert was raised, for Alertmanager; zero: the time in the alert.
func (s *Sink) deliver(ctx context.Context, prefix string, t api.Transition, since time.Time) error {
	text := s.text.of(t)
	switch s.Type {
	case Slack:
		return s.post(ctx, s.url, nil, map[string]string{"text": text})
	case Alertmanager:
		return s.postAlerts(ctx, []amAlert{s.amAlert(prefix, t, text, since, time.Now())})
	}
	return s.post(ctx, s.url, &t.ID, event{Type: "alert." + string(t.State), Timestamp: t.At(), Text: text, Data: t})
}

// maxAnswer is how much of an answer is read, and maxShown how much of it is logged, in bytes.
const maxAnswer, maxShown = 16 << 10, 200

// post sends v as JSON, signed if id is not nil.
func (s *Sink) post(ctx context.Context, url string, id *string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return redact.Error(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "streamcounter")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	if id != nil {
		if err := s.sign(req.Header, *id, body); err != nil {
			return err
		}
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return errors.New(s.hide(redact.Error(err).Error())) // net/http quotes answers that are not HTTP
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // if the answer is longer, the connection is closed
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return nil
	}
	return refusal{resp.StatusCode, s.hide(string(answer)), retryAfter(resp.Header, time.Now())}
}

// shortestSecret is the length from which a part of a URL may be a secret; shorter parts are words.
const shortestSecret = 6

// secrets returns the texts that must not be logged, the longest first: the secrets that sign, the token, and the URL
// as a whole and in its parts, both as they are written in the URL and as an endpoint decodes them.
func (s *spec) secrets() []string {
	list := append(strings.Fields(s.secret), s.url, s.token)
	add := func(least int, text string, unescape func(string) (string, error)) {
		plain, _ := unescape(text) // empty if it is not escaped correctly
		for _, one := range []string{text, plain} {
			if len(one) >= least {
				list = append(list, one)
			}
		}
	}
	if u, err := url.Parse(s.url); err == nil {
		add(2, u.EscapedPath(), url.PathUnescape)
		add(1, u.RawQuery, url.QueryUnescape)
		for part := range strings.SplitSeq(u.EscapedPath(), "/") {
			add(shortestSecret, part, url.PathUnescape)
		}
		separates := func(c rune) bool { return strings.ContainsRune("&;=", c) }
		for part := range strings.FieldsFuncSeq(u.RawQuery, separates) {
			add(shortestSecret, part, url.QueryUnescape)
		}
	}
	list = slices.DeleteFunc(list, func(one string) bool { return one == "" })
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return list
}

// unescaper replaces the escapes that JSON and HTML have for characters of URLs.
var unescaper = strings.NewReplacer(`\/`, "/", `\u0026`, "&", "&amp;", "&")

// hide returns the beginning of an endpoint's answer, without the texts that must not be logged: some endpoints
// repeat the request in their answer.
func (s *Sink) hide(said string) string {
	text := unescaper.Replace(strings.ToValidUTF8(said, ""))
	for _, secret := range s.secrets() {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return strings.TrimSpace(text)
}

// sign adds the headers of Standard Webhooks. The id is that of the alert, the same at each attempt. The time is that
// of the attempt: a receiver refuses a request that is older than five minutes.
func (s *Sink) sign(h http.Header, id string, body []byte) error {
	now := time.Now()
	var all []string
	for _, signer := range s.signers {
		signature, err := signer.Sign(id, now, body)
		if err != nil {
			return err
		}
		all = append(all, signature)
	}
	h.Set(standardwebhooks.HeaderWebhookID, id)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(all, " "))
	return nil
}

// longestAfter bounds the wait that an endpoint can request by Retry-After.
const longestAfter = 10 * time.Minute

// retryAfter reads Retry-After: seconds, of which ParseUint returns at most 31 bits, or a date; 0: it is missing.
func retryAfter(h http.Header, now time.Time) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return min(time.Duration(seconds)*time.Second, longestAfter)
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(at.Sub(now), 0), longestAfter)
	}
	return 0
}

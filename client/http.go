package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/transport"
)

// HTTPConfig: zero values are defaults.
type HTTPConfig struct {
	// Token returns the bearer token of each request; nil sends none. See StaticToken.
	Token func() string
	// TLS is for https URLs: roots, client certificates. Nil takes the system's roots.
	TLS *tls.Config
	// MaxIdle is how many connections are kept open between requests; default 64.
	MaxIdle int
}

// StaticToken is a token that never changes.
func StaticToken(token string) func() string { return func() string { return token } }

// HTTP is a Checker over the server's HTTP interface. It sends each check once. If a
// context carries a key (api.Repeatable reports that), HTTP sends the key too.
type HTTP struct {
	base      string
	token     func() string
	transport *http.Transport
	client    *http.Client
}

// connectWithin bounds making a connection; most calls end before, at their own deadline.
const connectWithin = time.Second

// maxBody bounds what is read of an answer: 100 checks of 8 windows need a tenth of it.
const maxBody = 1 << 20

// NewHTTP makes an HTTP for the server at base, such as http://127.0.0.1:8080. It connects when it is used.
func NewHTTP(base string, c HTTPConfig) (*HTTP, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("client: %s: expected a URL as http://HOST:PORT", api.Shorten(redact.URL(base)))
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf(
			"client: %s: expected a URL without user, query or fragment; a token goes into HTTPConfig.Token",
			api.Shorten(redact.URL(base)))
	}
	idle := cmp.Or(max(c.MaxIdle, 0), 64)
	// HTTP/1.1 on purpose: a request that times out closes its connection, so a connection that leads nowhere is not
	// used again.
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectWithin}).DialContext,
		TLSClientConfig:     c.TLS,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout: connectWithin,
		MaxIdleConns:        idle, MaxIdleConnsPerHost: idle, IdleConnTimeout: time.Minute,
		DisableCompression: true,
	}
	h := &HTTP{base: strings.TrimSuffix(base, "/"), token: c.Token, transport: t}
	h.client = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a redirected check would be sent twice
	}}
	return h, nil
}

// Close closes idle connections.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }

// Check implements Checker.
func (h *HTTP) Check(ctx context.Context, req api.CheckRequest) (api.CheckAnswer, error) {
	req, err := transport.Validate(ctx, req)
	if err != nil {
		return api.CheckAnswer{}, err
	}
	var a struct {
		api.Problem // of a denial
		api.CheckAnswer
	}
	if err = h.ask(ctx, http.MethodPost, "/v1/check", req, &a); err == nil {
		err = validateAnswers(a.Allowed, a.Type, []api.CheckAnswer{a.CheckAnswer}, []api.CheckRequest{req})
	}
	return transport.Decided(a.CheckAnswer, transport.ErrorOf(err, req))
}

// CheckAll implements Checker.
func (h *HTTP) CheckAll(ctx context.Context, reqs []api.CheckRequest) (api.ChecksAnswer, error) {
	reqs, err := transport.ValidateAll(ctx, reqs)
	if err != nil {
		return api.ChecksAnswer{}, err
	}
	var a struct {
		api.Problem // of a denial
		api.ChecksAnswer
	}
	if err = h.ask(ctx, http.MethodPost, "/v1/check", api.CheckRequest{Checks: reqs}, &a); err == nil {
		err = validateAnswers(a.Allowed, a.Type, a.Checks, reqs)
	}
	return transport.Decided(a.ChecksAnswer, transport.ErrorOf(err, reqs...))
}

// CheckEach implements Checker.
func (h *HTTP) CheckEach(ctx context.Context, reqs []api.CheckRequest) ([]api.Each, error) {
	return transport.EachValid(ctx, reqs, func(reqs []api.CheckRequest) ([]api.Each, error) {
		var a struct {
			Checks []struct {
				api.CheckAnswer
				Error api.Problem `json:"error"` // in the place of an answer
			} `json:"checks"`
		}
		body := map[string]any{"checks": reqs, "each": true}
		if err := h.ask(ctx, http.MethodPost, "/v1/check", body, &a); err != nil {
			return nil, err
		}
		if len(a.Checks) != len(reqs) {
			return nil, transport.Lost(fmt.Errorf("%d answers to %d checks", len(a.Checks), len(reqs)))
		}
		out := make([]api.Each, len(reqs))
		for i, c := range a.Checks {
			if c.Error.Type != "" {
				out[i].Err = transport.Named(c.Error.Type, c.Error.Detail)
			} else if out[i].Err = transport.ValidateAnswer(c.CheckAnswer, reqs[i].Key); out[i].Err == nil {
				out[i].CheckAnswer = c.CheckAnswer
			}
		}
		return out, nil
	})
}

// Peek implements Checker.
func (h *HTTP) Peek(ctx context.Context, key string) (api.KeyState, error) {
	var s api.KeyState
	if err := api.ValidateKey(key); err != nil {
		return s, err
	}
	err := h.ask(ctx, http.MethodGet, "/v1/keys/"+url.PathEscape(key), nil, &s)
	if err == nil && s.Key != key {
		err = transport.NotSent(fmt.Errorf("the answer is about the key %s", api.Shorten(s.Key)))
	}
	return s, err
}

// ask sends one request, whose body may be nil, and decodes the answer.
func (h *HTTP) ask(ctx context.Context, method, path string, body, into any) error {
	var text bytes.Buffer
	if body != nil {
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false) // it would make keys longer, and the server bounds a body
		if err := encoder.Encode(body); err != nil {
			return fmt.Errorf("client: encoding a request: %w", err)
		}
	}
	bearer, err := transport.Bearer(h.token)
	if err != nil {
		return err
	}
	r, sent, err := h.do(ctx, method, path, bearer, text.Bytes())
	switch {
	case err != nil && sent:
		err = transport.Lost(err)
	case err != nil:
		err = transport.NotSent(err)
	default:
		err = r.decode(into)
	}
	if method == http.MethodGet {
		err = transport.ErrorOf(err)
	}
	return err
}

// reply is an answer that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// do sends one request, and reports whether it may have reached the server.
func (h *HTTP) do(ctx context.Context, method, path, bearer string, body []byte) (*reply, bool, error) {
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, method, h.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		makeRepeatable(ctx, req)
	}
	if bearer != "" {
		req.Header.Set("Authorization", bearer)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, sent.Load(), err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, true, fmt.Errorf("reading the answer: %w", err)
	}
	if len(text) > maxBody {
		return nil, true, fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	return &reply{resp.StatusCode, resp.Header, text}, true, nil
}

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// asker sends checks to the server its own way, and says what became of each.
type asker interface {
	most() int // checks of one call
	ask(context.Context, []check) ([]outcome, error)
	close()
}

type check struct {
	key  string
	cost int64
	user string // a value; empty: none
}

func (c check) values() map[string]string {
	if c.user == "" {
		return nil
	}
	return map[string]string{"user": c.user}
}

type outcome int

const (
	nobodyKnows outcome = iota
	granted
	denied
)

// askers are one of each way: one check, several of which each is decided by
// itself, several at once that are charged all or not at all, and Envoy's
// protocol, by ones and by several.
func (s *system) askers() []asker {
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Must(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	envoy := rlsv3.NewRateLimitServiceClient(conn)
	plain := func() *http.Client { return &http.Client{Timeout: time.Second, Transport: &http.Transport{}} }
	// net/http sends a GET again where a connection that it used before is cut, and
	// a check is charged then twice: each has a connection of its own.
	once := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return []asker{
		oneByHTTP{once, s.base}, severalByHTTP{plain(), s.base, true}, severalByHTTP{plain(), s.base, false},
		byGRPC{envoy, 1}, byGRPC{envoy, 4}, byClient{s.client()},
	}
}

// client is the Go client as a service has it, but for a policy that tells itself
// apart from an answer.
func (s *system) client() *client.Client {
	over, err := client.NewHTTP(s.base, client.HTTPConfig{})
	testkit.Must(s.t, err)
	s.t.Cleanup(func() { over.Close() })
	c, err := client.New(over, client.Config{Timeout: time.Second, Policy: client.Allow})
	testkit.Must(s.t, err)
	return c
}

type byClient struct{ *client.Client }

func (c byClient) most() int { return 4 }
func (c byClient) close()    {}

func (c byClient) ask(_ context.Context, checks []check) ([]outcome, error) {
	var list []api.CheckRequest
	for _, c := range checks {
		list = append(list, api.CheckRequest{Key: c.key, Cost: c.cost, Values: c.values()})
	}
	answers, err := c.CheckEach(context.Background(), list)
	if err != nil {
		return nil, err
	}
	out := make([]outcome, len(checks))
	for i, a := range answers {
		out[i] = outcomeOf(a.CheckAnswer)
		if a.Err != nil {
			out[i] = nobodyKnows
		}
	}
	return out, nil
}

func outcomeOf(a api.CheckAnswer) outcome {
	switch {
	case a.Source != api.SourceRedis && a.Source != api.SourceLease:
		return nobodyKnows
	case a.Allowed:
		return granted
	}
	return denied
}

type oneByHTTP struct {
	client *http.Client
	base   string
}

func (h oneByHTTP) most() int { return 1 }
func (h oneByHTTP) close()    { h.client.CloseIdleConnections() }

func (h oneByHTTP) ask(_ context.Context, checks []check) ([]outcome, error) {
	var a api.CheckAnswer
	query := url.Values{"key": {checks[0].key}, "cost": {fmt.Sprint(checks[0].cost)}}
	if user := checks[0].user; user != "" {
		query.Set("value", "user="+user)
	}
	resp, err := h.client.Get(h.base + "/v1/check?" + query.Encode())
	if err == nil {
		err = decode(resp, &a)
	}
	return []outcome{outcomeOf(a)}, err
}

// checkOne checks a key by POST, under an idempotency key if name is one.
func (d *driver) checkOne(ctx context.Context, client *http.Client, key string, cost int64,
	name string) (a api.CheckAnswer, err error) {
	req, err := http.NewRequestWithContext(ctx, "POST", d.s.base+"/v1/check",
		strings.NewReader(fmt.Sprintf(`{"key":%q,"cost":%d}`, key, cost)))
	if err == nil {
		_, err = answerOf(client, req, name, &a)
	}
	return a, err
}

// decode reads an answer; any other status is an error.
func decode(resp *http.Response, into any) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	return err
}

type severalByHTTP struct {
	client *http.Client
	base   string
	each   bool
}

func (h severalByHTTP) most() int { return 8 }
func (h severalByHTTP) close()    { h.client.CloseIdleConnections() }

func (h severalByHTTP) ask(_ context.Context, checks []check) ([]outcome, error) {
	req := map[string]any{"each": h.each}
	var list []api.CheckRequest
	for _, c := range checks {
		list = append(list, api.CheckRequest{Key: c.key, Cost: c.cost, Values: c.values()})
	}
	req["checks"] = list
	text, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	var a struct{ Checks []api.CheckAnswer }
	resp, err := h.client.Post(h.base+"/v1/check", "application/json", bytes.NewReader(text))
	if err == nil {
		err = decode(resp, &a)
	}
	if err == nil && len(a.Checks) != len(checks) {
		err = fmt.Errorf("%d answers to %d checks", len(a.Checks), len(checks))
	}
	if err != nil {
		return nil, err
	}
	out := make([]outcome, len(checks))
	for i, one := range a.Checks { // one that is an error has no source
		out[i] = outcomeOf(one)
	}
	return out, nil
}

type byGRPC struct {
	client rlsv3.RateLimitServiceClient
	many   int
}

func (g byGRPC) most() int { return g.many }
func (g byGRPC) close()    {}

func (g byGRPC) ask(_ context.Context, checks []check) ([]outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req := &rlsv3.RateLimitRequest{Domain: "streamcounter"}
	for _, c := range checks {
		req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{
			Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: "key", Value: c.key}},
			HitsAddend: wrapperspb.UInt64(uint64(c.cost))})
	}
	answer, err := g.client.ShouldRateLimit(ctx, req)
	if err != nil {
		return nil, err
	}
	what := denied
	if answer.OverallCode == rlsv3.RateLimitResponse_OK {
		what = granted // the rule says deny: nobody but Redis grants
	}
	out := make([]outcome, len(checks))
	for i := range out {
		out[i] = what
	}
	return out, nil
}

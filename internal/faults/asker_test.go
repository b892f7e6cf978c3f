package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// asker sends checks to the server its own way, and says what became of each.
type asker struct {
	most   int  // checks of one call
	values bool // it sends values
	ask    func([]check) ([]outcome, error)
}

type check struct {
	key  string
	cost int64
	user string // a value; empty: none
}

func requests(checks []check) (list []api.CheckRequest) {
	for _, c := range checks {
		request := api.CheckRequest{Key: c.key, Cost: c.cost}
		if c.user != "" {
			request.Values = map[string]string{"user": c.user}
		}
		list = append(list, request)
	}
	return list
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
	// net/http sends a GET again where a connection that it used before is cut, and
	// a check is charged then twice: each has a connection of its own.
	once := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return []asker{{1, true, s.oneByHTTP(once)}, {8, true, s.severalByHTTP(newClient(), true)},
		{8, true, s.severalByHTTP(newClient(), false)}, {1, false, byGRPC(envoy)}, {4, false, byGRPC(envoy)},
		{4, true, byClient(s.client())}}
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

func byClient(c *client.Client) func([]check) ([]outcome, error) {
	return func(checks []check) ([]outcome, error) {
		answers, err := c.CheckEach(context.Background(), requests(checks))
		var out []outcome
		for _, a := range answers {
			if a.Err != nil {
				a.CheckAnswer = api.CheckAnswer{}
			}
			out = append(out, outcomeOf(a.CheckAnswer))
		}
		return out, err
	}
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

func (s *system) oneByHTTP(client *http.Client) func([]check) ([]outcome, error) {
	return func(checks []check) ([]outcome, error) {
		var a api.CheckAnswer
		query := url.Values{"key": {checks[0].key}, "cost": {fmt.Sprint(checks[0].cost)}}
		if user := checks[0].user; user != "" {
			query.Set("value", "user="+user)
		}
		_, err := answerTo(context.Background(), client, "GET", s.base+"/v1/check?"+query.Encode(), "", "", &a)
		return []outcome{outcomeOf(a)}, err
	}
}

// checkOne checks a key by POST, under an idempotency key if name is one.
func (d *driver) checkOne(ctx context.Context, client *http.Client, key string, cost int64,
	name string) (a api.CheckAnswer, err error) {
	body := fmt.Sprintf(`{"key":%q,"cost":%d}`, key, cost)
	_, err = answerTo(ctx, client, "POST", d.s.base+"/v1/check", body, name, &a)
	return a, err
}

func (s *system) severalByHTTP(client *http.Client, each bool) func([]check) ([]outcome, error) {
	return func(checks []check) ([]outcome, error) {
		text, err := json.Marshal(map[string]any{"each": each, "checks": requests(checks)})
		if err != nil {
			return nil, err
		}
		var a struct{ Checks []api.CheckAnswer }
		_, err = answerTo(context.Background(), client, "POST", s.base+"/v1/check", string(text), "", &a)
		if err == nil && len(a.Checks) != len(checks) {
			err = fmt.Errorf("%d answers to %d checks", len(a.Checks), len(checks))
		}
		var out []outcome
		for _, one := range a.Checks { // one that is an error has no source
			out = append(out, outcomeOf(one))
		}
		return out, err
	}
}

func byGRPC(client rlsv3.RateLimitServiceClient) func([]check) ([]outcome, error) {
	return func(checks []check) ([]outcome, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		req := &rlsv3.RateLimitRequest{Domain: "streamcounter"}
		for _, c := range checks {
			req.Descriptors = append(req.Descriptors, &commonv3.RateLimitDescriptor{
				Entries:    []*commonv3.RateLimitDescriptor_Entry{{Key: "key", Value: c.key}},
				HitsAddend: wrapperspb.UInt64(uint64(c.cost))})
		}
		answer, err := client.ShouldRateLimit(ctx, req)
		what := denied
		if answer.GetOverallCode() == rlsv3.RateLimitResponse_OK {
			what = granted // the rule says deny: nobody but Redis grants
		}
		return slices.Repeat([]outcome{what}, len(checks)), err
	}
}

// askAgain checks under idempotency keys, gives up on many answers before they can
// have come, and asks again until there is one: each check is charged once.
func (d *driver) askAgain(ctx context.Context, random *rand.Rand) {
	loop(ctx, random, 10, 20, func(client *http.Client) {
		key, cost, name := fmt.Sprintf("i:%d", random.IntN(3)), 1+random.Int64N(5), fmt.Sprintf("%x", random.Uint64())
		ask := func(within time.Duration) outcome {
			short, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			a, err := d.checkOne(short, client, key, cost, name)
			if err != nil {
				return nobodyKnows
			}
			return outcomeOf(a)
		}
		if random.IntN(2) == 0 {
			_ = ask(time.Duration(random.IntN(5000)) * time.Microsecond) // its answer is lost
		}
		was := ask(time.Second)
		for was == nobodyKnows && pause.For(ctx, 50*time.Millisecond) {
			was = ask(time.Second)
		}
		switch was {
		case nobodyKnows:
			d.charged(key, 0, cost)
			return
		case granted:
			d.charged(key, cost, cost)
		}
		d.again.Add(1)
		if now := ask(time.Second); now != nobodyKnows && now != was {
			d.record.ledger.fail(key, "%s: idempotency key %s was answered %d and then %d", name, was, now)
		}
	})
}

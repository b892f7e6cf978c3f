package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A worker starts while a NATS cluster has too few servers to elect a leader, and publishes once it has.
func TestWorkStartsWithoutAQuorumOfNATS(t *testing.T) {
	t.Parallel()
	cluster, redis := streamtest.OwnNATSCluster(t), "redis://"+streamtest.EmbeddedRedis(t).Addr()
	cluster.Kill(1)
	cluster.Kill(2)
	rules := devRules(t)
	p := startProgram(t, "work", "--redis", redis, "--rules", rules, "--nats", cluster.URL(), "--nats-replicas", "3",
		"--http", "127.0.0.1:0")
	p.until(`"msg":"ready"`)
	cluster.Start(1)
	cluster.Start(2)
	if code, _, errs := runProgram(t, "user:1 100\n", "append", "--redis", redis); code != 0 {
		t.Fatal(errs)
	}
	streamtest.Eventually(t, "the decision is published", func() (bool, string) {
		n := metric(t, p.base(), `streamcounter_transitions_total{rule="api",state="throttled"}`)
		return n == "1", n
	})
}

// While NATS is down, a process that publishes or delivers is not ready. A process that only reads is ready.
func TestReadinessWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	server := streamtest.OwnNATS(t)
	redis := "redis://" + streamtest.EmbeddedRedis(t).Addr()
	rules := devRules(t)
	sinks := testkit.WriteFile(t, "sinks.yml", "sinks: [{name: chat, type: slack, url: \"http://127.0.0.1:1\"}]")
	ready := map[*process]int{} // process → status while NATS is down
	for command, c := range map[string]struct {
		args   []string
		status int
	}{
		"work":  {[]string{"--redis", redis, "--rules", rules}, 503},
		"serve": {[]string{"--redis", redis, "--rules", rules}, 200},
		"sinks": {[]string{"--sinks", sinks}, 503},
	} {
		p := startProgram(t, append(c.args, command, "--nats", server.URL(), "--http", "127.0.0.1:0")...)
		p.until(`"msg":"ready"`)
		ready[p] = c.status
	}
	want := func(connected string, status func(away int) int) {
		t.Helper()
		for p, away := range ready {
			streamtest.Eventually(t, "readiness and metric", func() (bool, string) {
				code, _ := request(t, "GET", p.base()+"/readyz", "")
				have := metric(t, p.base(), "streamcounter_nats_connected")
				return code == status(away) && have == connected, fmt.Sprint(code, " ", have)
			})
		}
	}
	server.Stop()
	want("0", func(away int) int { return away })
	server.Start()
	want("1", func(int) int { return 200 })
}

// If --nats is another kind of server, the error says which server answered, and not that NATS is down.
func TestNATSThatIsNone(t *testing.T) {
	web := httptest.NewServer(nil)
	t.Cleanup(web.Close)
	redis := streamtest.EmbeddedRedis(t).Addr()
	work := "work --http 127.0.0.1:0 --redis redis://" + redis + " --rules " + devRules(t)
	for addr, want := range map[string]string{
		redis:                                  "a Redis server answers",
		strings.TrimPrefix(web.URL, "http://"): "an HTTP server answers",
	} {
		for _, line := range []string{work, "watch"} {
			t.Run(strings.Fields(line)[0]+", "+want, func(t *testing.T) {
				t.Parallel() // each waits for NATS
				expect(t, line+" --nats nats://user:secret@"+addr, failure, "--nats",
					addr+" is not a NATS server: "+want)
			})
		}
	}
}

// JetStream sends its answers to the reply subject of a request, and the messages of a push consumer to the subject
// that the consumer names. No publish permission applies to these. No user of deploy/ can use either to store
// messages in a stream of ours.
func TestNoNATSUserWritesByReply(t *testing.T) {
	ctx := t.Context()
	server := streamtest.NewSecuredNATS(t)
	_, relay := natsAs(t, server, "relay")
	_, err := alerts.EnsureStreams(ctx, relay, alerts.Streams("sc", 1))
	testkit.Must(t, err)
	const decision, alert = "sc.throttle.held.held:1", "sc.alert.held.80.held:1"
	for _, subject := range []string{decision, alert} {
		_, err := relay.Publish(ctx, subject, []byte("ours"))
		testkit.Must(t, err)
	}
	requests, err := os.ReadFile("testdata/requests.nats") // USER SUBJECT BODY
	testkit.Must(t, err)
	for line := range strings.Lines(string(requests)) {
		user, request, _ := strings.Cut(strings.TrimSpace(line), " ")
		subject, body, _ := strings.Cut(request, " ")
		nc, _ := natsAs(t, server, user)
		for _, reply := range []string{decision, alert} {
			testkit.Must(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: []byte(body)}))
		}
		// JetStream answers the requests of one connection in order: earlier requests are done.
		testkit.Must(t, nc.Flush())
		if _, err := nc.Request(subject, []byte(body), 500*time.Millisecond); err != nil {
			t.Logf("%s %s: %v", user, subject, err)
		}
	}
	for _, stream := range []string{"SC_THROTTLE", "SC_ALERTS"} {
		s, err := relay.Stream(ctx, stream)
		testkit.Must(t, err)
		state := s.CachedInfo().State
		if state.Msgs != 1 || state.LastSeq != 1 {
			t.Errorf("%s has %d messages up to number %d, want the one that the relay published", stream, state.Msgs,
				state.LastSeq)
		}
	}
}

// watch prints the decision in force, then that it waits, and then each new decision. It connects as its NATS user of
// deploy/. That user may also read the streams that `keys history` reads.
func TestWatchAsItsNATSUser(t *testing.T) {
	ctx := t.Context()
	server := streamtest.NewSecuredNATS(t)
	nc, _ := natsAs(t, server, "relay")
	publisher, err := alerts.NewPublisher(nc, alerts.PublisherConfig{Prefix: "sc"})
	testkit.Must(t, err)
	testkit.Must(t, publisher.Ensure(ctx))
	now := time.Now().UnixMilli()
	publish := func(key string, state api.State, level int) {
		t.Helper()
		tr := api.Transition{Rule: "api", Key: key, State: state, Level: level, Limit: 10, WindowMs: 60_000, Used: 10,
			Version: now, AtMs: now, SinceMs: now, UntilMs: now + 60_000, ExpiresMs: now + 90_000}
		tr.ID = tr.MessageID("sc")
		testkit.Must(t, publisher.Publish(ctx, []api.Transition{tr}, 0))
	}
	publish("before", api.StateThrottled, api.LevelThrottled)
	if subjects, err := publisher.Subjects(ctx); err != nil || len(subjects) != 1 { // as the comparer does
		t.Fatalf("the relay lists the subjects %q, %v", subjects, err)
	}
	if d, err := publisher.LastDecision(ctx, api.ThrottleSubject("sc", "api", "before")); err != nil || d == nil {
		t.Errorf("the relay reads its decision as %+v, %v", d, err)
	}
	p := startProgram(t, "watch", "--nats", server.As("watch"))
	p.until("connected to ")
	p.until(": 1 throttled, waiting\n")
	p.until("throttled          before")
	startProgram(t, "watch", "--nats", server.As("watch"), "--rule", "apo").until(
		`no decision of a rule "apo" is stored`)
	publish("after", api.StateThrottled, api.LevelThrottled)
	p.until("after")
	for i := 0; !strings.Contains(p.text(), "alert 80%"); i++ { // it prints only alerts after it has subscribed
		publish(fmt.Sprint("alert", i), api.StateRaised, 80)
	}
	if code := p.interrupt(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.text())
	}
	watch, _ := natsAs(t, server, "watch")
	history, err := alerts.NewHistory(watch, "sc")
	testkit.Must(t, err)
	if got, places, err := history.Alerts(ctx, "alert0", "", 10); err != nil || len(got) != 1 {
		t.Errorf("alerts: %+v, %v", got, err)
	} else if got, _, err = history.Alerts(ctx, "alert0", places[0], 10); err != nil || len(got) != 0 {
		t.Errorf("alerts before the first: %+v, %v", got, err)
	}
	if got, err := history.Decisions(ctx, "before"); err != nil || len(got) != 1 {
		t.Errorf("decisions: %+v, %v", got, err)
	}
	if list := server.Violations(); len(list) > 0 {
		t.Errorf("NATS refused:\n%s", strings.Join(list, "\n"))
	}
}

// The users of deploy/ that acknowledge alerts can do so with both forms of acknowledgement subjects (ADR-15 of
// NATS): the present one, and the one that begins with a domain and the account.
func TestAcknowledgementsOfBothForms(t *testing.T) {
	for form, prefix := range map[bool]string{false: "$JS.ACK.SC_ALERTS.", true: "$JS.ACK._."} {
		t.Run(fmt.Sprint("js_ack_fc_v2 ", form), func(t *testing.T) {
			ctx := t.Context()
			server := streamtest.NewSecuredNATS(t, fmt.Sprintf("feature_flags { js_ack_fc_v2: %v }", form))
			_, relay := natsAs(t, server, "relay")
			_, err := alerts.EnsureStreams(ctx, relay, alerts.Streams("sc", 1))
			testkit.Must(t, err)
			_, err = relay.Publish(ctx, "sc.alert.api.80.k", []byte("ours"))
			testkit.Must(t, err)
			for user, name := range map[string]string{"alerts": "pager", "sinks": "sink-am"} {
				_, js := natsAs(t, server, user)
				for _, filter := range []string{"", "sc.alert.>"} { // the request has another subject
					_, err := js.CreateOrUpdateConsumer(ctx, "SC_ALERTS", jetstream.ConsumerConfig{Durable: name,
						FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy})
					testkit.Must(t, err)
				}
				consumer, err := js.Consumer(ctx, "SC_ALERTS", name) // as a consumer that reconnects finds it
				testkit.Must(t, err)
				m, err := consumer.Next(jetstream.FetchMaxWait(30 * time.Second))
				testkit.Must(t, err)
				if !strings.HasPrefix(m.Reply(), prefix) {
					t.Errorf("the acknowledgement goes to %s, want one that begins with %s", m.Reply(), prefix)
				}
				testkit.Must(t, m.DoubleAck(ctx))
			}
			if list := server.Violations(); len(list) > 0 {
				t.Errorf("NATS refused:\n%s", strings.Join(list, "\n"))
			}
		})
	}
}

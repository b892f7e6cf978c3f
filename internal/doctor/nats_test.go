package doctor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A new server, and a server after the first `work`.
func TestNATS(t *testing.T) {
	own := streamtest.OwnNATS(t)
	golden(t, "nats-new", lookNATS(t, own.URL(), doctor.NATSConfig{}))
	_, err := alerts.EnsureStreams(t.Context(), streamtest.JetStream(t, own.URL()), alerts.Streams("sc", 1))
	testkit.Must(t, err)
	golden(t, "nats", lookNATS(t, own.URL(), doctor.NATSConfig{Monitor: monitor(t,
		`{"config":{"sync_interval":1000000000}}`)})) // the worst is ok
}

// Streams that somebody has created or changed in another way.
func TestDrift(t *testing.T) {
	own := streamtest.OwnNATS(t)
	js := streamtest.JetStream(t, own.URL())
	want := alerts.Streams("sc", 1)
	want[0].AllowMsgTTL, want[0].MaxMsgsPerSubject = false, 5
	want[1].MaxAge, want[1].Duplicates = time.Hour, time.Minute
	for _, c := range want {
		_, err := js.CreateStream(t.Context(), c)
		testkit.Must(t, err)
	}
	golden(t, "drift", lookNATS(t, own.URL(), doctor.NATSConfig{Replicas: 3}))
}

func TestSync(t *testing.T) {
	own := streamtest.OwnNATS(t)
	for _, x := range []struct {
		jsz, says string
		severity  doctor.Severity
	}{
		{`{"config":{"sync_interval":120000000000}}`, "every 2m0s", doctor.Warning},
		{`{"config":{}}`, "every 2m0s", doctor.Warning},
		{`{"config":{"sync_interval":1000000000}}`, "every 1s", doctor.OK},
		{`{"config":{"sync_interval":120000000000,"sync_always":true}}`, "at each message", doctor.OK},
		{`no JSON`, "/jsz", doctor.Warning},
	} {
		expect(t, lookNATS(t, own.URL(), doctor.NATSConfig{Monitor: monitor(t, x.jsz)}), "nats.sync", x.severity,
			x.says)
	}
	secret := lookNATS(t, own.URL(), doctor.NATSConfig{Monitor: "http://user:hidden@127.0.0.1:1/"})
	expect(t, secret, "nats.sync", doctor.Warning, "does not answer")
	for _, f := range secret {
		if strings.Contains(f.Found+f.Why+f.Fix, "hidden") {
			t.Errorf("a password is told: %+v", f)
		}
	}
}

// All accounts share the storage of the server. At its bound the server refuses a publish that the account's limits
// would allow.
func TestStorageOfTheServer(t *testing.T) {
	srv, _ := streamtest.EmbeddedNATS(t, server.Options{HTTPHost: "127.0.0.1", HTTPPort: -1, JetStream: true,
		StoreDir: t.TempDir(), JetStreamMaxStore: 1 << 20, SyncInterval: 7 * time.Second})
	js := streamtest.JetStream(t, srv.ClientURL())
	_, err := alerts.EnsureStreams(t.Context(), js, alerts.Streams("sc", 1))
	testkit.Must(t, err)
	config := doctor.NATSConfig{Monitor: "http://" + srv.MonitorAddr().String()}
	expect(t, lookNATS(t, srv.ClientURL(), config), "nats.sync", doctor.OK, "every 7s")
	for _, x := range []struct {
		bytes    int
		severity doctor.Severity
	}{{600_000, doctor.OK}, {300_000, doctor.Warning}, {130_000, doctor.Problem}} {
		_, err = js.Publish(t.Context(), "sc.alert.api.80.k", make([]byte, x.bytes))
		testkit.Must(t, err)
		expect(t, lookNATS(t, srv.ClientURL(), config), "nats.storage", x.severity, "of 1.0 MB")
	}
	for i := 0; i < 3 && err == nil; i++ { // the server takes the one that passes the bound
		_, err = js.Publish(t.Context(), "sc.alert.api.80.k", make([]byte, 100_000))
	}
	if err == nil || !strings.Contains(err.Error(), "insufficient resources") {
		t.Errorf("a full server answers %v", err)
	}
	expect(t, lookNATS(t, srv.ClientURL(), config), "nats.storage", doctor.Problem, "max_file_store")
	config.Monitor = "http://127.0.0.1:1"
	expect(t, lookNATS(t, srv.ClientURL(), config), "nats.storage", doctor.Warning, "not checked")
}

func TestNoJetStream(t *testing.T) {
	srv, _ := streamtest.EmbeddedNATS(t, server.Options{})
	expect(t, lookNATS(t, srv.ClientURL(), doctor.NATSConfig{}), "nats.jetstream", doctor.Problem, "JetStream is off",
		"store_dir")
}

// An account that is nearly full.
func TestAccountLimits(t *testing.T) {
	srv, _ := streamtest.EmbeddedNATS(t, server.Options{JetStream: true, StoreDir: t.TempDir(),
		JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 64 << 20})
	account := srv.GlobalAccount()
	testkit.Must(t, account.UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": {MaxMemory: 1 << 20,
		MaxStore: 1 << 20, MaxStreams: 2, MaxConsumers: 10}}))
	js := streamtest.JetStream(t, srv.ClientURL())
	_, err := alerts.EnsureStreams(t.Context(), js, alerts.Streams("sc", 1))
	testkit.Must(t, err)
	expect(t, lookNATS(t, srv.ClientURL(), doctor.NATSConfig{}), "nats.jetstream", doctor.OK, "of 1.0 MB",
		"2 streams of 2")
	_, err = js.Publish(t.Context(), "sc.alert.api.80.k", make([]byte, 900_000))
	testkit.Must(t, err)
	expect(t, lookNATS(t, srv.ClientURL(), doctor.NATSConfig{}), "nats.jetstream", doctor.Warning, "of 1.0 MB")
}

// A user with fewer rights gets findings that say so, and soon: the server does not answer a refused request.
func TestNATSUsers(t *testing.T) {
	secured := streamtest.NewSecuredNATS(t)
	expect(t, lookNATS(t, secured.As("doctor"), doctor.NATSConfig{}, nats.CustomInboxPrefix("_INBOX.doctor")),
		"nats.jetstream", doctor.OK)
	if list := secured.Violations(); len(list) > 0 {
		t.Errorf("the user doctor was refused %v", list)
	}
	began := time.Now()
	findings := lookNATS(t, secured.As("relay"), doctor.NATSConfig{}, nats.CustomInboxPrefix("_INBOX.relay"))
	expect(t, findings, "nats.jetstream", doctor.Note, "lacks the right", "$JS.API.INFO")
	expect(t, findings, "nats.SC_ALERTS", doctor.Note, "does not exist yet")
	findings = lookNATS(t, secured.As("subscriber"), doctor.NATSConfig{}, nats.CustomInboxPrefix("_INBOX.subscriber"))
	expect(t, findings, "nats.SC_THROTTLE", doctor.Note, "lacks the right", "$JS.API.STREAM.INFO.SC_THROTTLE")
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("refusals took %v: were they waited for?", took)
	}
}

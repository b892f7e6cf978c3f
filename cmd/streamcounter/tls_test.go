package main

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// A Redis that accepts only TLS requires a client certificate, as it does by default with TLS.
func TestRedisOverTLS(t *testing.T) {
	ours, others := streamtest.NewAuthority(t), streamtest.NewAuthority(t)
	cert, key := ours.Issue("redis")
	mine, mineKey := ours.Issue("client")
	port := fmt.Sprint(testkit.FreePort(t))
	streamtest.OwnRedis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file",
		ours.CA)
	at := "rediss://127.0.0.1:" + port
	all := []string{"--redis", at, "--redis-ca", ours.CA, "--redis-cert", mine, "--redis-key", mineKey}

	if code, _, errs := runProgram(t, "user:42 3\n", append([]string{"append"}, all...)...); code != 0 {
		t.Fatalf("append over TLS: exit code %d\n%s", code, errs)
	}
	p := startServe(t, all...)
	if code, body := request(t, "GET", p.base()+"/v1/check?key=user:42", ""); code != 200 ||
		!strings.Contains(body, `"source":"redis"`) {
		t.Errorf("a check over TLS: %d %s", code, body)
	}
	expect(t, "doctor --nats= --json "+strings.Join(all, " "), 1, `"redis.persistence"`)
	expect(t, "compare --boundary --algorithms sliding-log "+strings.Join(all, " "), 0)
	good := "append " + strings.Join(all, " ")
	for line, says := range map[string]string{
		"append --redis " + at + " --redis-ca " + ours.CA:   "no Redis answers", // no certificate
		strings.Replace(good, "--redis-ca "+ours.CA, "", 1): "unknown authority",
		good + " --redis-ca " + others.CA:                   "unknown authority",
		good + " --redis rediss://127.0.0.2:" + port:        "127.0.0.2",
		"append --redis redis://127.0.0.1:" + port:          "no Redis answers", // plain text, by a slip
	} {
		expect(t, line, 1, says)
	}
}

// Sentinel names the master; all connections use TLS.
func TestSentinelOverTLS(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	cert, key := ours.Issue("redis")
	tls := []string{"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ours.CA,
		"--tls-replication", "yes"}
	master := fmt.Sprint(testkit.FreePort(t))
	streamtest.OwnRedis(t, append(tls, "--tls-port", master)...)
	sentinel := streamtest.Sentinel(t, "tls-port", fmt.Sprintf(
		"sentinel monitor main 127.0.0.1 %s 1\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file "+
			"%s\ntls-replication yes\n",
		master, cert, key, ours.CA))
	args := []string{"append", "--redis", "rediss+sentinel://" + sentinel + "/main", "--redis-ca", ours.CA,
		"--redis-cert", cert, "--redis-key", key}
	streamtest.Eventually(t, "append by Sentinel over TLS", func() (bool, string) {
		code, _, errs := runProgram(t, "user:42 3\n", args...)
		return code == 0, errs
	})
	args[2] = strings.Replace(args[2], "rediss", "redis", 1)
	expect(t, strings.Join(args, " "), exitUsage, "need rediss")
}

// secureNATS is a server with TLS, an account, and other options of the test.
func secureNATS(t *testing.T, a *streamtest.Authority, change func(*natsserver.Options)) (url string) {
	t.Helper()
	cert, key := a.Issue("nats")
	config, err := natsserver.GenTLSConfig(&natsserver.TLSConfigOpts{CertFile: cert, KeyFile: key, CaFile: a.CA,
		Verify: true})
	testkit.Must(t, err)
	opts := natsserver.Options{JetStream: true, StoreDir: t.TempDir(), TLS: true, TLSVerify: true, TLSConfig: config,
		TLSTimeout: 5}
	change(&opts)
	s, _ := streamtest.EmbeddedNATS(t, opts)
	return "tls://127.0.0.1:" + fmt.Sprint(s.Addr().(*net.TCPAddr).Port)
}

func newSeed(t *testing.T, make func() (nkeys.KeyPair, error)) (pair nkeys.KeyPair, public, seed string) {
	t.Helper()
	pair, err := make()
	testkit.Must(t, err)
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	text, err := pair.Seed()
	testkit.Must(t, err)
	return pair, public, string(text)
}

// wantNATS proves that a command with these arguments is accepted: doctor finds JetStream, and a worker creates its
// streams.
func wantNATS(t *testing.T, good bool, name string, args ...string) {
	t.Helper()
	code, out, errs := runProgram(t, "", append([]string{"doctor", "--redis", streamtest.Redis(t), "--prefix", "sc"},
		args...)...)
	if in := strings.Contains(out, "ok       nats.reachable"); in != good {
		t.Errorf("%s: let in: %t, want %t; exit code %d\n%s%s", name, in, good, code, out, errs)
	}
	if strings.Contains(out+errs, "SU") && strings.Contains(out+errs, "BEGIN") {
		t.Errorf("%s: a seed is shown\n%s%s", name, out, errs)
	}
}

func TestNATSOverTLSWithNKey(t *testing.T) {
	ours, others := streamtest.NewAuthority(t), streamtest.NewAuthority(t)
	mine, mineKey := ours.Issue("client")
	_, public, seed := newSeed(t, nkeys.CreateUser)
	_, _, strange := newSeed(t, nkeys.CreateUser)
	url := secureNATS(t, ours, func(o *natsserver.Options) { o.Nkeys = []*natsserver.NkeyUser{{Nkey: public}} })
	good := []string{"--nats", url, "--nats-ca", ours.CA, "--nats-cert", mine, "--nats-key", mineKey, "--nats-nkey",
		testkit.WriteFile(t, "user.nk", seed)}
	wantNATS(t, true, "all files", good...)
	wantNATS(t, false, "another seed", append(good[:8:8], "--nats-nkey", testkit.WriteFile(t, "user.nk", strange))...)
	wantNATS(t, false, "no seed", good[:8]...)
	wantNATS(t, false, "no certificate", append(good[:4:4], good[8:]...)...)
	wantNATS(t, false, "another authority", append([]string{"--nats", url, "--nats-ca", others.CA}, good[4:]...)...)
	work := "work --redis embedded:0 --http 127.0.0.1:0 --rules " + devRules(t) + " " + strings.Join(good, " ")
	for more, says := range map[string]string{
		" --nats-nkey none.nk": "--nats-nkey (STREAMCOUNTER_NATS_NKEY)",
		" --nats-nkey " + testkit.WriteFile(t, "user.nk", "SECRET"):     "--nats-nkey (STREAMCOUNTER_NATS_NKEY)",
		" --nats-creds " + testkit.WriteFile(t, "user.creds", "SECRET"): "not both",
	} {
		if text := expect(t, work+more, failure, says); strings.Contains(text, "SECRET") {
			t.Error(text)
		}
	}
	worker := startProgram(t, strings.Fields(work)...)
	worker.until(`"msg":"ready"`)
	watcher := startProgram(t, append([]string{"watch"}, good...)...)
	watcher.until(": 0 throttled, waiting")
	for _, p := range []*process{worker, watcher} {
		if text := p.text(); strings.Contains(text, seed) || strings.Contains(text, "does not answer") {
			t.Errorf("a seed is shown, or it is not let in:\n%s", text)
		}
	}
}

// Credentials as nsc writes them: a user's JWT, signed by its account's key, and its seed.
func TestNATSWithCredentials(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	mine, mineKey := ours.Issue("client")
	operator, operatorKey, _ := newSeed(t, nkeys.CreateOperator)
	account, accountKey, _ := newSeed(t, nkeys.CreateAccount)
	_, systemKey, _ := newSeed(t, nkeys.CreateAccount)
	_, userKey, seed := newSeed(t, nkeys.CreateUser)
	sign := func(text string, err error) string {
		t.Helper()
		testkit.Must(t, err)
		return text
	}
	claims := jwt.NewAccountClaims(accountKey)
	claims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accounts := &natsserver.MemAccResolver{}
	testkit.Must(t, accounts.Store(accountKey, sign(claims.Encode(operator))))
	testkit.Must(t, accounts.Store(systemKey, sign(jwt.NewAccountClaims(systemKey).Encode(operator))))
	trusted, err := jwt.DecodeOperatorClaims(sign(jwt.NewOperatorClaims(operatorKey).Encode(operator)))
	testkit.Must(t, err)
	url := secureNATS(t, ours, func(o *natsserver.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{trusted}, accounts, systemKey
	})
	creds, err := jwt.FormatUserConfig(sign(jwt.NewUserClaims(userKey).Encode(account)), []byte(seed))
	testkit.Must(t, err)
	tls := []string{"--nats", url, "--nats-ca", ours.CA, "--nats-cert", mine, "--nats-key", mineKey}
	wantNATS(t, true, "credentials", append(tls[:8:8], "--nats-creds",
		testkit.WriteFile(t, "user.creds", string(creds)))...)
	wantNATS(t, false, "no credentials", tls...)
	wantNATS(t, false, "no such file", append(tls[:8:8], "--nats-creds", "none.creds")...)
	wantNATS(t, false, "half a file", append(tls[:8:8], "--nats-creds",
		testkit.WriteFile(t, "user.creds", string(creds[:len(creds)/2])))...)
}

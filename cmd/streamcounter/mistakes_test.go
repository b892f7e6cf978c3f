package main

import (
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/internal/streamtest"
	"github.com/streamcounter/streamcounter/internal/testkit"
	"github.com/streamcounter/streamcounter/windows"
)

// A wrong command line ends with 2 for every command, and the error says in one form what is wrong and what is
// expected.
func TestWrongCommandLines(t *testing.T) {
	const noRules = "missing --rules FILE (STREAMCOUNTER_RULES) or --rls-config; " +
		"`streamcounter dev` runs with an example"
	const noRedisURL = "expected redis://HOST:PORT, rediss:// or redis+sentinel://"
	for line, want := range map[string]string{
		"sreve":                     `unknown command "sreve" of streamcounter; did you mean serve?`,
		"help sreve":                `unknown command "sreve" of streamcounter; did you mean serve?`,
		"help rules dif":            `unknown command "dif" of streamcounter rules; did you mean diff?`,
		"rules dif a b":             `unknown command "dif" of streamcounter rules; did you mean diff?`,
		"keys blok user:1":          `unknown command "blok" of streamcounter keys; did you mean block?`,
		"keys user:1":               `unknown command "user:1" of streamcounter keys; see streamcounter keys --help`,
		"completion tcsh":           `unknown command "tcsh" of streamcounter completion; did you mean bash?`,
		"keys history":              "missing KEY. Usage: streamcounter keys history KEY",
		"keys limit user:1":         "missing LIMIT/SPAN. Usage: streamcounter keys limit KEY LIMIT/SPAN...",
		"keys limit user:1 many/1m": `"many/1m": expected LIMIT/SPAN, for example 500/1m`,
		"rules check a b":           `unexpected argument "b". Usage: streamcounter rules check [FILE]`,
		"check":                     "missing KEY. Usage: streamcounter check KEY [COST]",
		"check user:1 x":            `COST must be a whole number from 1 to 1,000,000,000, got "x"`,
		"check user:1 0":            `COST must be a whole number from 1 to 1,000,000,000, got "0"`,
		"check user:1 -5":           `COST must be a whole number from 1 to 1,000,000,000, got "-5"`,
		"check user:1 -x":           "unknown shorthand flag: 'x' in -x",
		"check user:1 --mode maybe": `--mode: bad request: mode "maybe", expected take, look or charge`,
		"check \x01":                `bad key: "\x01" has the control or invisible character U+0001 at byte 0`,
		"serve --open true": `unexpected argument "true"; write --FLAG=true or --FLAG=false. ` +
			"Usage: streamcounter serve",
		"work redis://me:s3cr3t@redis:6379": `unexpected argument "…@redis:6379". Usage: streamcounter work`,
		"serve":                             noRules,
		"work":                              noRules,
		"sinks":                             "missing --sinks FILE (STREAMCOUNTER_SINKS)",
		"append --format xml":               `--format is "xml": expected lines, ndjson or clf`,
		"bench":                             "no server to measure: give --target URL, such as http://127.0.0.1:8080",
		"compare":                           "no trace: want one of --boundary, --clf FILE and --trace FILE",
		"watch --nats http://127.0.0.1": "--nats (STREAMCOUNTER_NATS): http://127.0.0.1: expected nats://HOST:PORT, " +
			"tls://, ws:// or wss://",
		"append --redis redis://a%zz": "--redis (STREAMCOUNTER_REDIS): redis://…: not a URL; " +
			"expected redis://HOST:PORT",
		"compare --redis foo --boundary": "--redis: …: " + noRedisURL,
		"dev --redis foo":                "--redis: …: " + noRedisURL,
		"dev --redis embedded:x":         "--redis: expected embedded or embedded:PORT",
		"append --redis foo":             "--redis (STREAMCOUNTER_REDIS): …: " + noRedisURL,
		"bench pipeline --redis foo":     "--redis: …: " + noRedisURL,
		"bench pipeline --redis embedded": `--redis is "embedded": expected the URL of a running server, as ` +
			"`streamcounter dev` prints it",
		"bench --target http://h:1 --redis foo":               "--redis: …: " + noRedisURL,
		"bench pipeline --redis redis://127.0.0.1:1 --rate 0": "--rate is 0: expected more than 0, at most 1000000",
		"bench pipeline --redis redis://127.0.0.1:1 --algorithm leaky": `--algorithm: algorithm "leaky": want ` +
			strings.Join(windows.Algorithms, ", "),
		"watch --partitions 3": "unknown flag: --partitions",
		"watch --rule x.>":     `--rule is "x.>": expected the name of a rule, 1 to 64 of a-z, 0-9 and -`,
		"watch --rule=":        `--rule is "": expected the name of a rule, 1 to 64 of a-z, 0-9 and -`,
	} {
		code, _, errs := runProgram(t, "", strings.Fields(line)...)
		if code != exitUsage || errs != "streamcounter: "+want+"\n" {
			t.Errorf("%s: %d %s, want %s", line, code, errs, want)
		}
	}
}

// An error names the setting, and says what is wrong with it.
func TestSettingsThatCannotBe(t *testing.T) {
	ours := streamtest.NewAuthority(t)
	cert, key := ours.Issue("server")
	rules, empty := devRules(t), testkit.WriteFile(t, "empty.pem", "nothing")
	bad := testkit.WriteFile(t, "bad.yml", strings.Replace(devRulesText, "limit: 100", "limit: -1", 1))
	closed := testkit.FreeAddr(t)
	serve := "serve --redis embedded:0 --http 127.0.0.1:0 --rules " + rules
	for line, says := range map[string]string{
		serve + " --tls-cert " + cert:                               "--tls-cert and --tls-key are needed together",
		serve + " --tls-client-ca " + ours.CA:                       "--tls-cert and --tls-key are needed together",
		serve + " --tls-cert " + cert + " --tls-key " + key + "x":   key + "x: no such file",
		serve + " --tls-cert " + ours.CA + " --tls-key " + key:      "private key does not match",
		serve + " --redis redis://127.0.0.1:1 --redis-ca " + cert:   "need rediss://",
		serve + " --redis rediss://127.0.0.1:1 --redis-ca " + empty: "--redis-ca (STREAMCOUNTER_REDIS_CA): " + empty,
		serve + " --redis rediss://127.0.0.1:1 --redis-cert " + cert: "--redis-cert and --redis-key are needed " +
			"together",
		serve + " --tls-cert " + cert + " --tls-key " + key + " --tls-client-ca " + empty: "--tls-client-ca " +
			"(STREAMCOUNTER_TLS_CLIENT_CA): " + empty + ": it has no certificate",
		serve + " --tokens none.yml":           "--tokens (STREAMCOUNTER_TOKENS): load tokens: open none.yml",
		serve + " --max-connections 0":         "--max-connections (STREAMCOUNTER_MAX_CONNECTIONS)",
		serve + " --redis redis://" + closed:   "no Redis answers at redis://" + closed,
		serve + " --redis http://x":            "--redis (STREAMCOUNTER_REDIS): http://x",
		serve + " --http 8080":                 "--http (STREAMCOUNTER_HTTP)",
		serve + " --rules " + bad:              "bad.yml:5:23",
		serve + " --rules /does/not/exist.yml": "--rules (STREAMCOUNTER_RULES): load rules: open ",
		serve + " --rls-algorithm leaky":       `algorithm "leaky"`,
		"serve --redis embedded:0 --rules " + rules + " --http " + closed + " --grpc " + closed: "expected another " +
			"address than that of --http",
		serve + " --debug 0.0.0.0:6060":            `is "0.0.0.0:6060": expected an address of this machine alone`,
		serve + " --debug :6060":                   `is ":6060": expected an address of this machine alone`,
		serve + " --debug 192.0.2.1:6060":          `is "192.0.2.1:6060": expected an address of this machine alone`,
		serve + " --debug 6060":                    `is "6060": expected an address of this machine alone`,
		"append --redis redis:/host":               "redis://HOST:PORT",
		"append --redis localhost:6379":            "redis://HOST:PORT",
		"append --redis redis://" + closed:         "redis://" + closed,
		"append --redis embedded":                  "--redis",
		"rules check " + bad:                       "bad.yml:5:23",
		"check k --http " + closed:                 "--http",
		"bench --target localhost":                 "--target is localhost: expected http://HOST:PORT",
		"bench --target http://" + closed:          "the first call: ",
		"bench --target http://h:1 --keys 0":       "--keys is 0: expected at least 1",
		"bench --target http://h:1 --per-call 101": "--per-call is 101: expected 1 to 100",
	} {
		if text := expect(t, line, failure, says); strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s: %s", line, text)
		}
	}
}

// Each command warns of an unknown variable, even a command without a log.
func TestUnknownVariablesAreWarnedOf(t *testing.T) {
	t.Setenv("STREAMCOUNTER_HTPP", "127.0.0.1:1")
	expect(t, "rules check "+devRules(t), 0, "did you mean STREAMCOUNTER_HTTP?")
}

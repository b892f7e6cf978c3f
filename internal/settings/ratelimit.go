package settings

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/internal/xds"
)

// typeXDS is the CONFIG_TYPE of limits from an xDS server.
const typeXDS = "GRPC_XDS_SOTW"

// RateLimit has the settings that only the command ratelimit has.
type RateLimit struct {
	XDS         *xds.Config // nil: limits of files
	TLS         *XDSTLS     // of XDS; nil: plain text
	Wait        bool        // serve only when limits have come
	HTTP        string      // address of /json and /healthcheck
	Debug       string      // address of /rlconfig; empty: not served
	Metrics     string      // address; empty: not served
	MetricsPath string
	// The conditions of /healthcheck besides a running process.
	NeedLimits, NeedRedis bool
}

// XDSTLS is how the connection to the xDS server is encrypted.
type XDSTLS struct {
	files      ClientFiles
	serverName string // of the server's certificate; empty: the name in its address
}

// Open reads the files. They are read again when they change.
func (x XDSTLS) Open(log *slog.Logger) (*reload.Files[*tls.Config], error) {
	paths := []string{x.files.ca, x.files.cert, x.files.key}
	paths = slices.DeleteFunc(paths, func(path string) bool { return path == "" })
	return reload.Open("certificates of the xDS server", log, func([]reload.File) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: x.serverName}
		if err := x.files.Apply(c); err != nil {
			return nil, fmt.Errorf("TLS of the xDS server (CONFIG_GRPC_XDS_SERVER_TLS_CACERT, "+
				"CONFIG_GRPC_XDS_CLIENT_TLS_CERT, _KEY): %w", cmp.Or(errors.Unwrap(err), err))
		}
		return c, nil
	}, paths...)
}

// ratelimitEnv reads the variables of envoyproxy/ratelimit. An empty variable counts as not set.
type ratelimitEnv struct {
	look     func(string) (string, bool)
	errs     []error
	warnings []string
	xdsTLS   *XDSTLS // nil: plain text
}

func (e *ratelimitEnv) text(name, def string) string {
	v, _ := e.look(name)
	return cmp.Or(v, def)
}

// parsed returns a value that must have a form, or def if the variable is not set.
func parsed[T any](e *ratelimitEnv, name string, def T, form string, parse func(string) (T, error)) T {
	text := e.text(name, "")
	if text == "" {
		return def
	}
	v, err := parse(text)
	if err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s is %q: expected %s", name, withoutSecret(name, text), form))
		return def
	}
	return v
}

const xdsHeaders = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"

// withoutSecret returns a value in a form that messages may show: headers can be tokens, and the text before @ can be
// a password.
func withoutSecret(name, text string) string {
	if name == xdsHeaders {
		return "…"
	}
	return redact.Login(text)
}

func (e *ratelimitEnv) truth(name string) bool {
	return parsed(e, name, false, "true or false", strconv.ParseBool)
}

func (e *ratelimitEnv) duration(name string) time.Duration {
	return parsed(e, name, 0, "a duration such as 10s", func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		if err == nil && d < 0 {
			err = errors.New("below zero")
		}
		return d, err
	})
}

func (e *ratelimitEnv) pairs(name, between string) map[string]string {
	return parsed(e, name, nil, "NAME"+between+"VALUE,NAME"+between+"VALUE", func(s string) (map[string]string, error) {
		out := map[string]string{}
		for _, one := range strings.Split(s, ",") {
			k, v, ok := strings.Cut(one, between)
			if !ok {
				return nil, errors.New("no " + between)
			}
			out[k] = v
		}
		return out, nil
	})
}

func (e *ratelimitEnv) addr(host, port, def string) string {
	number := parsed(e, port, atoi(def), "a port", func(s string) (int, error) {
		v, err := strconv.ParseUint(s, 10, 16)
		return int(v), err
	})
	return net.JoinHostPort(e.text(host, ""), strconv.Itoa(number))
}

func atoi(s string) int { n, _ := strconv.Atoi(s); return n }

// sameAsFlag are variables with the same meaning as a flag of ours: name → flag.
var sameAsFlag = [][2]string{
	{"GRPC_MAX_CONNECTION_AGE", "grpc-max-age"}, {"SHADOW_MODE", "rls-shadow"}, {"QUOTA_MODE", "rls-quota"},
	{"MERGE_DOMAIN_CONFIG", "rls-merge-domains"}, {"RESPONSE_DYNAMIC_METADATA", "rls-metadata"},
	{"CACHE_KEY_PREFIX", "prefix"}, {"REDIS_TLS_CACERT", "redis-ca"}, {"REDIS_TLS_CLIENT_CERT", "redis-cert"},
	{"REDIS_TLS_CLIENT_KEY", "redis-key"},
}

// levels: a level of logrus → our level.
var levels = map[string]string{"panic": "error", "fatal": "error", "error": "error", "warn": "warn",
	"warning": "warn", "info": "info", "debug": "debug", "trace": "debug"}

// unsupported variables change what is decided or reported, and have no effect here: variable → what happens instead.
var unsupported = [][2]string{
	{"REDIS_PERSECOND", "all limits are counted at REDIS_URL"},
	{"REDIS_SENTINEL_AUTH", "Sentinel is asked without a password"},
	{"TRACING_ENABLED", "traces are sent where OTEL_EXPORTER_OTLP_ENDPOINT is set"},
	{"USE_DOG_STATSD", "metrics are served for Prometheus alone"},
	{"EXTRA_TAGS", "metrics have no such labels"},
	{"USE_CALENDAR_MONTH_RATE_LIMIT", "a month is 30 days"},
	{"LIMIT_REQUEST_HEADERS_ENABLED", "nothing is added to requests"},
	{"LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED", "headers show the limit that is nearest"},
	{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "what is denied counts as --rls-on-deny says"},
}

// tlsVariables are read only if another variable is true: variable → that other one.
var tlsVariables = [][2]string{
	{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_USE_TLS"}, {"GRPC_CLIENT_TLS_CACERT", "GRPC_SERVER_USE_TLS"},
	{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_SERVER_USE_TLS"},
	{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_SERVER_USE_TLS"},
}

// ReadRateLimit makes cmd read the variables of envoyproxy/ratelimit before it runs. Call it after Flags: a flag, or
// its own variable, takes precedence over such a variable.
func (c *Config) ReadRateLimit(cmd *cobra.Command) {
	load := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		warnings, err := c.fromRatelimit(cmd.Flags(), os.LookupEnv)
		if err != nil {
			return UsageError{Err: err}
		}
		if err := load(cmd, args); err != nil {
			return err
		}
		c.warnings = append(c.warnings, warnings...)
		c.Rules.Unlevelled = c.NATS.URL == "" // nobody would end levels, or read the transitions that they publish
		return nil
	}
}

// fromRatelimit reads the variables of envoyproxy/ratelimit. It ignores those for the tuning of a connection pool,
// for statsd, and for the watching of files, because they change nothing here.
func (c *Config) fromRatelimit(fs *pflag.FlagSet, look func(string) (string, bool)) ([]string, error) {
	e := &ratelimitEnv{look: look}
	for _, v := range sameAsFlag {
		e.flag(fs, v[0], v[1], e.text(v[0], ""))
	}
	level := strings.ToLower(e.text("LOG_LEVEL", ""))
	e.flag(fs, "LOG_LEVEL", "log-level", cmp.Or(levels[level], level))
	c.LogFormat = e.text("LOG_FORMAT", "")
	e.flag(fs, "REDIS_URL", "redis", e.redis())
	c.Redis.TLS.anyName = e.truth("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")
	c.GRPC.Grace = e.duration("GRPC_MAX_CONNECTION_AGE_GRACE")
	e.headers(fs)
	e.flag(fs, "GRPC_PORT", "grpc", e.addr("GRPC_HOST", "GRPC_PORT", "8081"))
	if e.truth("GRPC_SERVER_USE_TLS") {
		e.flag(fs, "GRPC_SERVER_TLS_CERT", "tls-cert", e.text("GRPC_SERVER_TLS_CERT", ""))
		e.flag(fs, "GRPC_SERVER_TLS_KEY", "tls-key", e.text("GRPC_SERVER_TLS_KEY", ""))
		e.flag(fs, "GRPC_CLIENT_TLS_CACERT", "tls-client-ca", e.text("GRPC_CLIENT_TLS_CACERT", ""))
		if own, _ := e.look(EnvName("tls-cert")); own == "" && fs.Lookup("tls-cert").Value.String() == "" {
			e.errs = append(e.errs, errors.New("GRPC_SERVER_USE_TLS is true: GRPC_SERVER_TLS_CERT must be the file "+
				"of a certificate, and GRPC_SERVER_TLS_KEY that of its key"))
		}
	}
	near := parsed(e, "NEAR_LIMIT_RATIO", 0.8, "a share from 0 to 1", func(s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err == nil && !(v > 0 && v <= 1) {
			err = errors.New("out of range")
		}
		return v, err
	})
	e.flag(fs, "NEAR_LIMIT_RATIO", "rls-near-limit", strconv.Itoa(max(1, int(near*100+0.5))))
	e.flag(fs, "USE_PROMETHEUS", "rls-metrics", "true")
	r := &c.RateLimit
	*r = RateLimit{HTTP: e.addr("HOST", "PORT", "8080"), Debug: e.addr("DEBUG_HOST", "DEBUG_PORT", "6070"),
		MetricsPath: e.text("PROMETHEUS_PATH", "/metrics"),
		NeedLimits:  e.truth("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"),
		NeedRedis:   e.truth("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"),
		Wait:        !e.truth("FORCE_START_WITHOUT_INITIAL_CONFIG")}
	if e.truth("USE_PROMETHEUS") {
		r.Metrics = e.text("PROMETHEUS_ADDR", ":9090")
	}
	e.limits(c, fs)
	e.refuse()
	return e.warnings, errors.Join(e.errs...)
}

// flag sets a flag, unless the flag, or its own variable, is already set. Errors then name the variable.
func (e *ratelimitEnv) flag(fs *pflag.FlagSet, variable, name, value string) {
	own, _ := e.look(EnvName(name))
	if value == "" || own != "" || fs.Changed(name) {
		return
	}
	fs.Lookup(name).Annotations[ratelimitAnnotation] = []string{variable} // AsSet names it
	if err := fs.Set(name, value); err != nil {
		e.errs = append(e.errs, FlagError(err, nil))
	}
}

// headers sets the names of the three headers, which can be chosen.
func (e *ratelimitEnv) headers(fs *pflag.FlagSet) {
	if !e.truth("LIMIT_RESPONSE_HEADERS_ENABLED") {
		return
	}
	for _, h := range [][3]string{{"LIMIT_LIMIT_HEADER", "rls-limit-header", "RateLimit-Limit"},
		{"LIMIT_REMAINING_HEADER", "rls-remaining-header", "RateLimit-Remaining"},
		{"LIMIT_RESET_HEADER", "rls-reset-header", "RateLimit-Reset"}} {
		e.flag(fs, h[0], h[1], e.text(h[0], h[2]))
	}
}

func (e *ratelimitEnv) limits(c *Config, fs *pflag.FlagSet) {
	switch kind := e.text("CONFIG_TYPE", "FILE"); kind {
	case "FILE":
		e.flag(fs, "RUNTIME_ROOT", "rls-config", filepath.Join(e.text("RUNTIME_ROOT", "/srv/runtime_data/current"),
			e.text("RUNTIME_SUBDIRECTORY", ""), e.text("RUNTIME_APPDIRECTORY", "config")))
	case typeXDS:
		c.RateLimit.XDS = e.xds()
		c.RateLimit.TLS = e.xdsTLS
	default:
		e.errs = append(e.errs, fmt.Errorf("CONFIG_TYPE is %q: expected FILE or %s", kind, typeXDS))
	}
}

func (e *ratelimitEnv) xds() *xds.Config {
	x := &xds.Config{Server: e.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
		Node:        e.text("CONFIG_GRPC_XDS_NODE_ID", "default"),
		Metadata:    e.pairs("CONFIG_GRPC_XDS_NODE_METADATA", "="),
		Headers:     e.pairs(xdsHeaders, ":"),
		LongestWait: e.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL"),
		MaxBytes: parsed(e, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 0, "a number of bytes", func(s string) (int, error) {
			v, err := strconv.ParseUint(s, 10, 31)
			return int(v), err
		})}
	if !e.truth("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
		return x
	}
	e.xdsTLS = &XDSTLS{serverName: e.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", ""),
		files: ClientFiles{ca: e.text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ""),
			cert: e.text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", ""), key: e.text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "")}}
	return x
}

// redis returns the URL for --redis; empty if no variable sets it.
func (e *ratelimitEnv) redis() string {
	target := e.text("REDIS_URL", "")
	if target == "" || strings.Contains(target, "://") {
		return target
	}
	socket, kind := e.text("REDIS_SOCKET_TYPE", "unix"), strings.ToUpper(e.text("REDIS_TYPE", "SINGLE"))
	scheme, login := "redis", ""
	if e.truth("REDIS_TLS") {
		scheme = "rediss"
	}
	if auth := e.text("REDIS_AUTH", ""); auth != "" {
		user, password, both := strings.Cut(auth, ":")
		if !both {
			user, password = "", auth
		}
		login = userinfo(kind, user, password)
	}
	nodes := strings.Split(target, ",")
	switch {
	case socket != "unix" && socket != "tcp":
		e.errs = append(e.errs, fmt.Errorf("REDIS_SOCKET_TYPE is %q: expected tcp or unix", socket))
	case kind == "SINGLE" && strings.HasPrefix(target, "/"):
		return "unix://" + login + target
	case socket == "unix" && kind == "SINGLE":
		e.errs = append(e.errs, fmt.Errorf("REDIS_URL is %q: expected the path of a socket, as REDIS_SOCKET_TYPE is "+
			"unix; for HOST:PORT set REDIS_SOCKET_TYPE=tcp", withoutSecret("REDIS_URL", target)))
	case kind == "SINGLE" || kind == "CLUSTER":
		return scheme + "://" + login + target
	case kind == "SENTINEL" && len(nodes) > 1:
		return scheme + "+sentinel://" + login + strings.Join(nodes[1:], ",") + "/" + nodes[0]
	case kind == "SENTINEL":
		e.errs = append(e.errs, fmt.Errorf("REDIS_URL is %q: expected MASTER,HOST:PORT,HOST:PORT",
			withoutSecret("REDIS_URL", target)))
	default:
		e.errs = append(e.errs, fmt.Errorf("REDIS_TYPE is %q: expected SINGLE, SENTINEL or CLUSTER", kind))
	}
	return ""
}

// userinfo returns the part of the URL before the host. For Sentinel, user and password are not escaped.
func userinfo(kind, user, password string) string {
	if kind == "SENTINEL" {
		return user + ":" + password + "@"
	}
	return url.UserPassword(user, password).String() + "@"
}

// refuse adds an error for a variable whose effect is missing here and essential, and a warning for the others.
func (e *ratelimitEnv) refuse() {
	if backend := e.text("BACKEND_TYPE", "redis"); backend != "redis" {
		e.errs = append(e.errs, fmt.Errorf("BACKEND_TYPE is %q: limits are counted in Redis alone", backend))
	}
	for _, name := range []string{"GRPC_UDS", "GRPC_CLIENT_TLS_SAN"} {
		if v := e.text(name, ""); v != "" {
			e.errs = append(e.errs, fmt.Errorf("%s is %q, and is not supported", name, v))
		}
	}
	if e.truth("USE_STATSD") && !e.truth("USE_PROMETHEUS") {
		e.warnings = append(e.warnings, "USE_STATSD is not supported: metrics are served at the debug port, and with "+
			"USE_PROMETHEUS=true at PROMETHEUS_ADDR")
	}
	for _, v := range unsupported {
		if set := e.text(v[0], ""); set != "" && set != "false" {
			e.warnings = append(e.warnings, v[0]+" is not supported: "+v[1])
		}
	}
	for _, v := range tlsVariables {
		if e.text(v[0], "") != "" && !e.truth(v[1]) {
			e.warnings = append(e.warnings, v[0]+" is ignored without "+v[1]+"=true")
		}
	}
}

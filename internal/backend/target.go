package backend

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// RedisOptions reads a --redis value, and adds the TLS files. If there are TLS files, it refuses a URL without TLS,
// because the user expects TLS.
func RedisOptions(target string, files settings.ClientFiles) (*redis.UniversalOptions, error) {
	o, err := readTarget(target)
	if err != nil || !files.Given() {
		return o, err
	}
	if o.TLSConfig == nil {
		return nil, fmt.Errorf("%s is without TLS: --redis-ca, --redis-cert and --redis-key need rediss://",
			redact.URL(target))
	}
	return o, files.Apply(o.TLSConfig)
}

func readTarget(target string) (*redis.UniversalOptions, error) {
	o := &redis.UniversalOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true,
		DialTimeout: 2 * time.Second, DialerRetries: 1, // we try again ourselves, and log it
		ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
		PoolSize: 10 * runtime.GOMAXPROCS(0), PipelinePoolSize: 10, // per node, if there are several
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	scheme, rest, _ := strings.Cut(target, "://")
	if scheme == "redis+sentinel" || scheme == "rediss+sentinel" {
		if scheme == "rediss+sentinel" { // for Sentinel and Redis; each connection checks the name that it dialed
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			user, pass, _ := strings.Cut(rest[:at], ":")
			o.Username, o.Password, rest = user, pass, rest[at+1:]
		}
		hosts, master, ok := strings.Cut(rest, "/")
		if !ok || master == "" || hosts == "" {
			return nil, fmt.Errorf("%s: expected redis+sentinel://HOST:PORT,HOST:PORT/MASTER", redact.URL(target))
		}
		o.Addrs, o.MasterName = strings.Split(hosts, ","), master
		return o, nil
	}
	parts := strings.Split(target, ",")
	for i, part := range parts {
		if !strings.Contains(part, "://") && i > 0 {
			part = "redis://" + part // redis://a:1,b:2
		}
		one, err := redis.ParseURL(part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", redact.URL(target), unreadable(part))
		}
		o.Addrs = append(o.Addrs, one.Addr)
		if i == 0 {
			o.Username, o.Password, o.DB, o.TLSConfig = one.Username, one.Password, one.DB, one.TLSConfig
		}
	}
	o.IsClusterMode = len(parts) > 1
	return o, nil
}

// unreadable returns what is wrong with a URL that go-redis cannot read. Unlike the error of go-redis, it quotes
// nothing of the URL.
func unreadable(part string) error {
	u, err := url.Parse(part)
	switch {
	case err != nil:
		hint := ""
		if strings.Contains(part, "@") {
			hint = " (in a password write @ : / # ? % , as %40 %3A %2F %23 %3F %25 %2C)"
		}
		return fmt.Errorf("%w; expected redis://HOST:PORT%s", redact.ErrNoURL, hint)
	case u.Scheme != "redis" && u.Scheme != "rediss" || u.Opaque != "":
		return errors.New("expected redis://HOST:PORT, rediss:// or redis+sentinel://")
	case u.Host == "":
		return errors.New("it has no host; expected redis://HOST:PORT")
	case u.RawQuery != "":
		return errors.New(
			"an option after the ? is unknown or has a bad value (write a password before the host: " +
				"redis://:PASSWORD@HOST:PORT)")
	}
	return errors.New("expected redis://HOST:PORT/DATABASE, where DATABASE is a number")
}

package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// Shared by compare and bench: a Redis that the user chooses, and the command line in their reports.

// measuredRedis connects to --redis, with a pool of the given number of connections (0: the default of the library).
// It starts an embedded Redis first if --redis names one: on a free port, unless a port is given.
func measuredRedis(ctx context.Context, c settings.Redis, connections int) (client redis.UniversalClient, name string,
	closeAll func(), err error) {
	target := c.URL
	name = redact.URL(target)
	stop := func() {}
	port, embedded, err := settings.EmbeddedPort(target, 0)
	if err != nil {
		return nil, "", nil, settings.Blame("redis", err)
	}
	if embedded {
		var addr string
		if addr, stop, err = backend.StartRedis(port); err != nil {
			return nil, "", nil, err
		}
		name, target = "embedded", "redis://"+addr
	}
	opts, err := backend.RedisOptions(target, c.TLS)
	if err == nil {
		opts.PoolSize = cmp.Or(connections, opts.PoolSize)
		client, err = backend.DialRedis(ctx, target, opts)
	}
	if err != nil {
		stop()
		return nil, "", nil, settings.Blame("redis", err)
	}
	return client, name, func() {
		_ = client.Close()
		stop()
	}, nil
}

// commandLine returns the command line, without passwords.
func commandLine(cmd *cobra.Command) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if strings.Contains(value, "://") {
			value = redact.URL(value)
		}
		if f.NoOptDefVal != "" { // in "--json true", true would be an argument
			words = append(words, "--"+f.Name+"="+value)
			return
		}
		words = append(words, "--"+f.Name, value)
	})
	return strings.Join(words, " ")
}

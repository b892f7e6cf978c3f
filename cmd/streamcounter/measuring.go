package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamcounter/streamcounter/internal/redact"
)

// What compare and bench share: a Redis of their own choice, and the words that
// make their figures again.

// measuredRedis connects to --redis, with a pool of so many connections (0: the
// library's own choice), and starts it first if it is an embedded one: on a free
// port, unless one is named.
func measuredRedis(ctx context.Context, c redisConfig, connections int) (client redis.UniversalClient, name string,
	closeAll func(), err error) {
	target := c.URL
	name = redact.URL(target)
	stop := func() {}
	port, embedded, err := embeddedPort(target, 0)
	if err != nil {
		return nil, "", nil, blame("redis", err)
	}
	if embedded {
		var addr string
		if addr, stop, err = startRedis(port); err != nil {
			return nil, "", nil, err
		}
		name, target = "embedded", "redis://"+addr
	}
	opts, err := secureRedisOptions(target, c.TLS)
	if err == nil {
		opts.PoolSize = cmp.Or(connections, opts.PoolSize)
		client, err = dialRedis(ctx, target, opts)
	}
	if err != nil {
		stop()
		return nil, "", nil, blame("redis", err)
	}
	return client, name, func() {
		_ = client.Close()
		stop()
	}, nil
}

// commandLine is what makes the same figures again, for a shell, without
// passwords.
func commandLine(cmd *cobra.Command, args ...string) string {
	path := strings.TrimPrefix(cmd.CommandPath(), "streamcounter ")
	words := append([]string{"streamcounter", path}, args...)
	add := func(name, value string) { words = append(words, "--"+name, quote(value)) }
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed { // by a flag or by the environment
			return
		}
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, one := range v.GetSlice() {
				add(f.Name, one)
			}
		default:
			switch {
			case slices.Contains(urls, f.Name):
				add(f.Name, redact.URL(f.Value.String()))
			case f.Value.Type() == "bool":
				words = append(words, "--"+f.Name+strings.TrimSuffix("="+f.Value.String(), "=true"))
			default:
				add(f.Name, f.Value.String())
			}
		}
	})
	return strings.Join(words, " ")
}

// urls are the flags whose values can hold a password.
var urls = []string{"redis", "target", "metrics"}

func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !strings.ContainsRune(plainRunes, r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

const plainRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+:,./@%"

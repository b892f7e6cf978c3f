package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/doctor"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
)

// examineTimeout is how long doctor examines one server.
const examineTimeout = 8 * time.Second

func newDoctor() *cobra.Command {
	c := settings.New()
	var asJSON, prune bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check Redis and NATS, and say how to fix what is wrong",
		Long: `Checks Redis, NATS and the keys of the prefix for what serve and work need. Each
finding says what was found, why it matters, and the command that fixes it.
Without --prune it changes nothing. If the user in the URL may not read something,
the finding is a note, not a failure. deploy/ has a user "doctor" for each server
that may read everything.

--prune first deletes libraries of Redis Functions of other versions, if no running
process of the prefix uses them. A process whose library is gone loads it again at
its next call.

With --nats '' NATS is not checked.

Exit code: 0 nothing above a note, 1 a warning or a problem, 2 a server did not answer
or the command line is wrong, so not everything was checked.`,
		Example: `  streamcounter doctor
  streamcounter doctor --redis redis://doctor:PASSWORD@redis:6379 --nats nats://doctor:PASSWORD@nats:4222
  streamcounter doctor --json | jq '.findings[] | select(.severity == "problem")'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if prune {
				if err := pruneLibraries(cmd, c); err != nil {
					return err
				}
			}
			report, err := examine(cmd.Context(), c)
			if err != nil {
				return err
			}
			if err := printReport(cmd, report, asJSON, "  "); err != nil {
				return err
			}
			if code := report.ExitCode(); code != 0 {
				return exitError{code: code}
			}
			return nil
		},
	}
	c.Flags(cmd, "redis", "nats", "nats-replicas", "doctor", "rules", "stream")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON")
	cmd.Flags().BoolVar(&prune, "prune", false, "delete libraries of other versions that no process uses")
	cmd.Annotations = exitTwo
	return cmd
}

func pruneLibraries(cmd *cobra.Command, c *settings.Config) error {
	keys, err := stream.NewKeys(c.Stream.Prefix, c.Stream.Partitions)
	if err != nil {
		return err
	}
	return withRedis(cmd, c, func(client redis.UniversalClient) error {
		deleted, err := doctor.Prune(cmd.Context(), client, keys)
		for _, name := range deleted {
			fmt.Fprintln(cmd.ErrOrStderr(), "deleted", name)
		}
		return err
	})
}

// examine examines both servers concurrently: a server that does not answer must not use up the time of the other.
func examine(ctx context.Context, c *settings.Config) (doctor.Report, error) {
	keys, err := stream.NewKeys(c.Stream.Prefix, c.Stream.Partitions)
	if err != nil {
		return doctor.Report{}, err
	}
	if err := errors.Join(settings.NotEmbedded("redis", c.Redis.URL),
		settings.NotEmbedded("nats", c.NATS.URL)); err != nil {
		return doctor.Report{}, err
	}
	redisConfig := doctor.RedisConfig{Keys: keys, Retention: c.Stream.Retention}
	natsConfig := doctor.NATSConfig{Prefix: c.Stream.Prefix, Replicas: c.NATS.Replicas, Monitor: c.NATS.Monitor}
	var inRedis, inNATS []doctor.Finding
	var both sync.WaitGroup
	both.Go(func() { inRedis = examineRedis(ctx, c.Redis, redisConfig) })
	both.Go(func() { inNATS = examineNATS(ctx, c.NATS, natsConfig) })
	both.Wait()
	return doctor.NewReport(inRedis, inNATS, examineRules(c.Rules)), nil
}

func examineRedis(ctx context.Context, c settings.Redis, config doctor.RedisConfig) []doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	client, err := backend.ConnectRedis(ctx, c, 0)
	if err != nil {
		fix := "start it, or correct --redis"
		if word := redisclient.Word(err); word == "WRONGPASS" || word == "NOAUTH" {
			fix = "correct the user or the password in --redis"
		}
		return []doctor.Finding{{Check: doctor.RedisReachable, Severity: doctor.Problem, Found: err.Error(),
			Why: "nothing counts without it", Fix: fix}}
	}
	defer client.Close()
	return append([]doctor.Finding{{Check: doctor.RedisReachable, Severity: doctor.OK, Found: redact.URL(c.URL)}},
		doctor.Redis(ctx, client, config)...)
}

func examineNATS(ctx context.Context, c settings.NATS, config doctor.NATSConfig) []doctor.Finding {
	if c.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	nc, err := backend.ConnectNATS(c, natsconn.Config{URL: c.URL, Name: "streamcounter doctor",
		Log: slog.New(slog.DiscardHandler)}, nats.NoReconnect())
	if err != nil {
		return []doctor.Finding{{Check: doctor.NATSReachable, Severity: doctor.Problem,
			Found: backend.NATSUnreachable(c.URL, err).Error(),
			Why:   "decisions and alerts wait in the outbox; counts and checks go on",
			Fix:   "start it, or correct --nats"}}
	}
	defer nc.Close()
	return append([]doctor.Finding{{Check: doctor.NATSReachable, Severity: doctor.OK, Found: redact.URL(c.URL)}},
		doctor.NATS(ctx, nc, config)...)
}

func examineRules(c settings.Rules) []doctor.Finding {
	if c.File == "" && c.Limits == "" {
		return nil
	}
	f := doctor.Finding{Check: "rules", Severity: doctor.OK}
	rules, err := checkedRules(c, loadRules)
	if err != nil {
		f.Severity, f.Found = doctor.Problem, err.Error()
		f.Why, f.Fix = "a start with it fails, and a reload keeps the old rules",
			"correct it, then: streamcounter rules check "+c.Words()
		return []doctor.Finding{f}
	}
	f.Found = fmt.Sprintf("%s has %d rules", c.Words(), len(rules.List()))
	return []doctor.Finding{f}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/doctor"
	"github.com/streamcounter/streamcounter/stream"
	"github.com/streamcounter/streamcounter/windows"
)

// How long doctor looks at one server, and how long a start may.
const (
	lookWithin  = 8 * time.Second
	startWithin = time.Second
)

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at Redis and NATS, and say what to mend",
		Long: `Looks at Redis, NATS and the keys of the prefix as serve and work need them, and
says of each thing what it found, why it matters, and the command that mends it.
It changes nothing. What the user in the URL may not read is a note, no failure:
deploy/ has a user "doctor" for each server who may read all of it.

With --nats '' NATS is left out. The exit code is 0 where nothing is above a
note, 1 with a warning or a problem, 2 where a server did not answer or the
command line is wrong, so that not everything was looked at.`,
		Example: `  streamcounter doctor
  streamcounter doctor --redis redis://doctor:PASSWORD@redis:6379 --nats nats://doctor:PASSWORD@nats:4222
  streamcounter doctor --json | jq '.findings[] | select(.severity == "problem")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := examine(cmd)
			if err != nil {
				return exitError{2, err}
			}
			out := cmd.OutOrStdout()
			if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
				encoder := json.NewEncoder(out)
				encoder.SetEscapeHTML(false)
				encoder.SetIndent("", "  ")
				err = encoder.Encode(report)
			} else {
				err = report.WriteText(out)
			}
			if err != nil {
				return exitError{2, err}
			}
			if code := report.ExitCode(); code != 0 {
				return exitError{code: code}
			}
			return nil
		},
	}
	use(cmd, []string{"redis", "redis-ca", "redis-cert", "redis-key", "nats", "nats-creds", "nats-nkey", "nats-ca", "nats-cert", "nats-key", "nats-replicas", "nats-monitor", "rules", "prefix", "partitions", "retention"})
	cmd.Flags().Bool("json", false, "print the findings as JSON")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exitError{2, err} })
	return cmd
}

// examine looks at both servers at the same time: one that is silent must not
// take the other's.
func examine(cmd *cobra.Command) (doctor.Report, error) {
	o := options{cmd: cmd}
	keys, err := stream.NewKeys(o.text("prefix"), o.number("partitions"))
	config := doctor.RedisConfig{Keys: keys, Retention: o.duration("retention")}
	natsConfig := doctor.NATSConfig{Prefix: o.text("prefix"), Replicas: o.number("nats-replicas"), Monitor: o.text("nats-monitor")}
	if err := errors.Join(o.err, err); err != nil {
		return doctor.Report{}, err
	}
	for _, name := range []string{"redis", "nats"} {
		if _, embedded, _ := embeddedPort(o.text(name), 0); embedded {
			return doctor.Report{}, blame(name, fmt.Errorf("%q: doctor needs a server that runs, such as the one that `streamcounter dev` prints", o.text(name)))
		}
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // what fails is a finding
	var inRedis, inNATS []doctor.Finding
	var both sync.WaitGroup
	both.Go(func() { inRedis = examineRedis(cmd.Context(), o.text("redis"), o.clientFiles("redis"), config) })
	both.Go(func() { inNATS = examineNATS(cmd.Context(), &o, natsConfig) })
	both.Wait()
	return doctor.NewReport(inRedis, inNATS, examineRules(o.text("rules"))), nil
}

func examineRedis(ctx context.Context, target string, files clientFiles, config doctor.RedisConfig) []doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	short, blocking, err := connectRedis(ctx, target, files, 1)
	if err != nil {
		return []doctor.Finding{{Check: doctor.RedisReachable, Severity: doctor.Problem, Found: err.Error(), Why: "nothing counts without it", Mend: "start it, or correct --redis"}}
	}
	defer short.Close()
	defer blocking.Close()
	return append([]doctor.Finding{{Check: doctor.RedisReachable, Severity: doctor.OK, Found: redacted(target)}}, doctor.Redis(ctx, short, config)...)
}

func examineNATS(ctx context.Context, o *options, config doctor.NATSConfig) []doctor.Finding {
	target := o.text("nats")
	if target == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	nc, err := connectNATS(o, target, nats.Name("streamcounter doctor"), nats.NoReconnect(), nats.Timeout(2*time.Second))
	if err != nil {
		return []doctor.Finding{{Check: doctor.NATSReachable, Severity: doctor.Problem, Found: blame("nats", fmt.Errorf("no NATS answers at %s: %w", redacted(target), withoutURL(err))).Error(),
			Why: "decisions and alerts wait in the outbox; counts and checks go on", Mend: "start it, or correct --nats"}}
	}
	defer nc.Close()
	return append([]doctor.Finding{{Check: doctor.NATSReachable, Severity: doctor.OK, Found: redacted(target)}}, doctor.NATS(ctx, nc, config)...)
}

func examineRules(path string) []doctor.Finding {
	if path == "" {
		return nil
	}
	f := doctor.Finding{Check: "rules", Severity: doctor.OK}
	rules, err := windows.Load(path)
	if err != nil {
		f.Severity, f.Found = doctor.Problem, err.Error()
		f.Why, f.Mend = "a start with it fails, and a reload keeps the old rules", "correct it, then: streamcounter rules check "+path
		return []doctor.Finding{f}
	}
	f.Found = fmt.Sprintf("%s has %d rules", path, len(rules.List()))
	return []doctor.Finding{f}
}

// lookAtStart logs what is wrong with Redis, one line each. It holds a start up
// for a second at most, and ends none.
func lookAtStart(ctx context.Context, c redis.UniversalClient, target string, log *slog.Logger) {
	o, err := redisOptions(target)
	named := err == nil && o.Username != ""
	for _, f := range doctor.Start(ctx, c, named, startWithin) {
		log.Warn("Redis: "+f.Found, "check", f.Check, "why", f.Why, "mend", f.Mend)
	}
}

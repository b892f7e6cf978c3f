// Command leases measures what local answers for a hot key save and cost: several processes with callers
// of their own ask for one key, in turn with a lease in its rule and without. By the callers' own record it
// tells how much was admitted, and the most that any second can have held.
//
//	redis-server --port 6390 --save "" &
//	go run ./internal/bench/leases -redis redis://127.0.0.1:6390 -limit 10000 -rate 12000
//
// Without -rate each caller asks again as soon as it is answered. Read window.go next: how the record is
// counted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/measure"
)

// settings are the flags, and what a process is told.
type settings struct {
	Redis, Prefix             string
	Limit, Rate               int64
	Processes, Callers        int
	Denials                   int
	Lease, Lasts              time.Duration
	Rounds                    int
	BeginMs, EndMs, MeasureMs int64
}

func main() {
	if os.Getenv(childEnv) != "" {
		fail(child(context.Background()))
		return
	}
	var s settings
	flag.StringVar(&s.Redis, "redis", "redis://127.0.0.1:6390", "the server to count in")
	flag.Int64Var(&s.Limit, "limit", 10_000, "limit per second")
	flag.Int64Var(&s.Rate, "rate", 0, "checks asked for per second by all callers; 0: as fast as they are answered")
	flag.IntVar(&s.Processes, "processes", 4, "processes")
	flag.IntVar(&s.Callers, "callers", 16, "callers of each process")
	flag.IntVar(&s.Denials, "denials", 0, "how many denied keys each process remembers, with a lease and without;\n"+
		"0: only those that may have leases, as by default in Go (serve: 10000)")
	flag.DurationVar(&s.Lease, "lease", 100*time.Millisecond, "lease of the rule")
	flag.DurationVar(&s.Lasts, "duration", 6*time.Second, "how long each turn lasts")
	flag.IntVar(&s.Rounds, "rounds", 3, "turns with a lease and without, each")
	flag.Parse()
	if flag.NArg() > 0 || s.Processes < 1 || s.Callers < 1 || s.Limit < 1 || s.Rounds < 1 || s.Lasts < 2*time.Second {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fail(run(ctx, s))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "leases:", err)
		os.Exit(1)
	}
}

// result is what a turn came to.
type result struct {
	asked, admitted, local int64
	most                   int64         // that any second can have held
	cpu                    time.Duration // of Redis, per second
}

func run(ctx context.Context, s settings) error {
	options, err := redis.ParseURL(s.Redis)
	if err != nil {
		return fmt.Errorf("-redis: %w", err)
	}
	c := redis.NewClient(options)
	defer func() { _ = c.Close() }()
	if err := c.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis answers at -redis %s: %w", options.Addr, err)
	}
	fmt.Printf("%d processes of %d callers, limit %d per second, asked for %d a second (0: all they can)\n\n",
		s.Processes, s.Callers, s.Limit, s.Rate)
	fmt.Println("lease     asked/s  admitted/s  most in a second  from memory  Redis ms/s")
	ratios := make([]float64, 0, s.Rounds)
	for round := range s.Rounds {
		var cpu [2]time.Duration
		for i, lease := range []time.Duration{s.Lease, 0} {
			one := s
			one.Lease, one.Prefix = lease, fmt.Sprintf("bench-leases-%d-%d-%d", os.Getpid(), round, i)
			r, err := turn(ctx, c, one)
			err = errors.Join(err, measure.Remove(context.WithoutCancel(ctx), c, one.Prefix))
			if err != nil {
				return err
			}
			cpu[i] = r.cpu
			fmt.Printf("%-8s %8d  %10d  %16d  %10.1f%%  %10.1f\n", lease, r.asked, r.admitted, r.most,
				100*float64(r.local)/float64(max(1, r.asked)), float64(r.cpu.Microseconds())/1000)
		}
		ratios = append(ratios, 100*float64(cpu[0])/float64(cpu[1]))
	}
	slices.Sort(ratios)
	fmt.Printf("\nRedis takes %.1f %% of what it takes without leases (%.1f to %.1f)\n", ratios[len(ratios)/2],
		ratios[0], ratios[len(ratios)-1])
	return nil
}

// turn starts the processes, and measures between their first second and their last.
func turn(ctx context.Context, c *redis.Client, s settings) (result, error) {
	begin := time.Now().Add(time.Second)
	s.BeginMs, s.MeasureMs = begin.UnixMilli(), begin.Add(time.Second).UnixMilli()
	s.EndMs = begin.Add(s.Lasts).UnixMilli()
	records, wait, err := start(ctx, s)
	if err != nil {
		return result{}, err
	}
	cpuAt := func(ms int64) (cpu time.Duration, err error) {
		select {
		case <-time.After(time.Until(time.UnixMilli(ms))):
			return measure.CPU(ctx, c)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	before, err := cpuAt(s.MeasureMs)
	after, err2 := cpuAt(s.EndMs)
	if err := errors.Join(err, err2, wait()); err != nil {
		return result{}, err
	}
	seconds := float64(s.EndMs-s.MeasureMs) / 1000
	r := count(records, s)
	r.cpu = time.Duration(float64(after-before) / seconds)
	return r, nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/client/direct"
	"github.com/streamcounter/streamcounter/windows"
)

// childEnv has the settings of a process, as JSON.
const childEnv = "STREAMCOUNTER_BENCH_LEASES"

// start starts the processes. records are complete after wait.
func start(ctx context.Context, s settings) (records []record, wait func() error, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	told, err := json.Marshal(s)
	if err != nil {
		return nil, nil, err
	}
	records = make([]record, s.Processes)
	var ends []func() error
	wait = func() (err error) {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
		return err
	}
	for i := range records {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, program)
		cmd.Env = append(os.Environ(), childEnv+"="+string(told))
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		if err := cmd.Start(); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("starting process %d: %w", i, err), wait())
		}
		ends = append(ends, func() error {
			if err := cmd.Wait(); err != nil {
				return fmt.Errorf("process %d: %w", i, err)
			}
			return json.Unmarshal(out.Bytes(), &records[i])
		})
	}
	return records, wait, nil
}

// child is one process: it asks from BeginMs to EndMs, and writes its record.
func child(ctx context.Context) error {
	var s settings
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &s); err != nil {
		return err
	}
	options, err := redis.ParseURL(s.Redis)
	if err != nil {
		return err
	}
	options.MaxRetries, options.ContextTimeoutEnabled = -1, true
	c := redis.NewClient(options)
	defer func() { _ = c.Close() }()
	rules, err := windows.NewRules([]*windows.Rule{{Name: "hot", Match: "*", Lease: s.Lease,
		Windows: []windows.Window{{Limit: s.Limit, Per: time.Second}}}})
	if err != nil {
		return err
	}
	counter, err := direct.NewRedis(ctx, c, direct.Config{Rules: windows.Fixed(rules).Rules, Prefix: s.Prefix,
		Denials: s.Denials})
	if err != nil {
		return err
	}
	parts := make([]record, s.Callers)
	var callers sync.WaitGroup
	for i := range parts {
		callers.Go(func() { parts[i] = call(ctx, s, counter, i) })
	}
	callers.Wait()
	counter.Close()
	var all record
	for _, p := range parts {
		all.Asked, all.Local = all.Asked+p.Asked, all.Local+p.Local
		all.Granted = append(all.Granted, p.Granted...)
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// call is one caller. With a rate it asks at set times, and late rather than not at all.
func call(ctx context.Context, s settings, counter *direct.Redis, i int) (r record) {
	begin, end := time.UnixMilli(s.BeginMs), time.UnixMilli(s.EndMs)
	var every time.Duration
	if s.Rate > 0 {
		every = time.Duration(int64(s.Processes*s.Callers) * int64(time.Second) / s.Rate)
	}
	time.Sleep(time.Until(begin.Add(every * time.Duration(i) / time.Duration(s.Callers))))
	next := time.Now()
	for {
		if every > 0 {
			time.Sleep(time.Until(next))
			next = next.Add(every)
		}
		asked := time.Now()
		if !asked.Before(end) {
			return r
		}
		a, err := counter.Check(ctx, api.CheckRequest{Key: "hot"})
		answered := time.Now()
		at := [2]int32{int32(asked.UnixMilli() - s.BeginMs), int32(answered.UnixMilli() - s.BeginMs)}
		if err == nil && a.Allowed {
			r.Granted = append(r.Granted, at)
		}
		if at[1] < int32(s.MeasureMs-s.BeginMs) {
			continue
		}
		r.Asked++
		if a.Source == api.SourceLease || a.Source == api.SourceCache {
			r.Local++
		}
	}
}

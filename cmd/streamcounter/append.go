package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/compare"
	"github.com/streamcounter/streamcounter/internal/logging"
	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/stream"
)

func newAppend() *cobra.Command {
	var format string
	form := logForm{key: "ip"}
	var asJSON bool
	c := settings.New()
	cmd := &cobra.Command{
		Use:   "append",
		Short: "Append events from standard input",
		Long: `Reads events from standard input and appends them to Redis, as any producer does.

Formats:
  lines    KEY [COUNT], one a line
  ndjson   {"key": "user:42", "count": 3}, one a line; without count it is 1
           {"key": "ip:10.0.0.1", "values": {"user": "alice"}} if rules count values
  clf      a web server's log in common or combined format: each line is one
           event of the key ip:<remote host>, or with --key user of user:<user>;
           lines without a user are skipped, and counted. An IPv6 address is
           counted by its /64, as extractors check it by default

An event counts at the time it is appended. To try an old log at its own times, use
streamcounter compare --clf LOG --rules FILE. A line that cannot be read is reported
with its number and skipped; the exit code is then 1.

If Redis does not answer, or cannot store an event now (for example, it is out of memory),
a warning is printed, events wait, and reading pauses until Redis stores them. Events that
were sent without an answer are not sent again. They count as perhaps stored, and the next
events wait until Redis answers. After the end of the input, events wait at most 15s; after
Ctrl-C they do not wait.`,
		Example: `  echo 'user:42 3' | streamcounter append
  streamcounter append --format clf < /var/log/nginx/access.log
  tail -F access.log | streamcounter append --format clf`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAppend(cmd, c, format, form, asJSON) },
	}
	c.Flags(cmd, "redis", "stream")
	cmd.Flags().StringVar(&format, "format", "lines", "lines, ndjson or clf")
	cmd.Flags().StringVar(&form.key, "key", "ip", "part of a line of clf that is its key: ip or user")
	cmd.Flags().StringSliceVar(&form.values, "values", nil, "parts of a line of clf that rules count: ip, user, path")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the summary as JSON")
	return cmd
}

// appendSummary counts events. Only Entries counts stream entries: it is smaller than the number of appended events
// if events of one key were merged.
type appendSummary struct {
	Events   int     `json:"events"`
	Entries  int     `json:"entries"`
	Rejected int     `json:"rejected"`
	Skipped  int     `json:"skipped"` // lines of a log without a user, which is the key
	Refused  int     `json:"refused"`
	Unknown  int     `json:"unknown"`
	Seconds  float64 `json:"seconds"`
}

// appendTimeout is how long events wait after the end of the input while none is stored. Tests change it.
var appendTimeout = 15 * time.Second

// lineParser returns the function that reads the lines of a format; form is for lines of a log.
func lineParser(cmd *cobra.Command, format string, form logForm) (parser, error) {
	parse := map[string]parser{"lines": plainLine, "ndjson": jsonLine, "clf": form.line}[format]
	switch {
	case parse == nil:
		return nil, settings.UsageErrorf("--format is %q: expected lines, ndjson or clf", format)
	case format == "clf":
		return parse, form.validate()
	case cmd.Flags().Changed("key") || len(form.values) > 0:
		return nil, settings.UsageErrorf("--key and --values: only with --format clf")
	}
	return parse, nil
}

func runAppend(cmd *cobra.Command, c *settings.Config, format string, form logForm, asJSON bool) error {
	parse, err := lineParser(cmd, format, form)
	if err != nil {
		return err
	}
	log, client, err := openWithRetry(cmd, c)
	if err != nil {
		return err
	}
	defer client.Close()
	again, end := context.WithCancel(cmd.Context())
	defer end()
	dog := newWatchdog(appendTimeout)
	defer dog.end(nil)
	context.AfterFunc(dog.ctx, end)
	s := &sender{log: log, client: client, dog: dog, again: again, messages: cmd.ErrOrStderr()}
	warn := warnings(format, cmd.ErrOrStderr())
	producer, err := stream.NewProducer(log, stream.ProducerConfig{OnFlush: s.flushed})
	if err != nil {
		return err
	}
	start, notTaken := time.Now(), 0
	readErr := eachLine(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), func(n int, line string, err error) error {
		var e api.Event
		if err == nil {
			var skip bool
			if e, skip, err = parse(line); skip {
				s.sum.Skipped += withoutUser(line)
				return nil
			}
			warn(n, line)
		}
		if err != nil {
			s.sum.Rejected++
			reportRejected(cmd.ErrOrStderr(), s.sum.Rejected, fmt.Sprint("line ", n), err)
			return nil
		}
		if err = producer.Append(cmd.Context(), e); err != nil {
			notTaken++
		}
		return err
	})
	// Events that were read are also sent after Ctrl-C, as long as some are stored.
	dog.watch()
	_ = producer.Close(dog.ctx) // its error may be of events that were stored later: s has seen all outcomes
	sum := &s.sum
	sum.Refused += notTaken
	sum.Seconds = time.Since(start).Seconds()
	if !asJSON {
		sum.print(cmd.ErrOrStderr())
	} else if err := json.NewEncoder(cmd.OutOrStdout()).Encode(sum); err != nil {
		return err
	}
	switch {
	case s.failed && dog.ctx.Err() != nil:
		return context.Cause(dog.ctx)
	case s.failed: // it is reported already
		return exitError{code: 1}
	case readErr != nil && !errors.Is(readErr, context.Canceled):
		return readErr
	case readErr != nil:
		return exitError{code: 130}
	case sum.Rejected > 0:
		return exitError{code: 1}
	}
	return nil
}

// A watchdog ends its context when there is no progress for a time. Its methods may be called by any goroutine.
type watchdog struct {
	ctx   context.Context
	end   context.CancelCauseFunc // call it in the end
	timer *time.Timer
	limit time.Duration
}

func newWatchdog(limit time.Duration) watchdog {
	ctx, end := context.WithCancelCause(context.Background())
	return watchdog{ctx, end, time.NewTimer(limit), limit}
}

// feed says that there is progress.
func (w watchdog) feed() { w.timer.Reset(w.limit) }

// watch ends the context when feed was not called for the limit, from now on.
func (w watchdog) watch() {
	w.feed()
	go func() {
		select {
		case <-w.timer.C:
			w.end(fmt.Errorf("no event was stored for %s", w.limit))
		case <-w.ctx.Done():
		}
	}()
}

// openWithRetry is openEventLog, but it tries again while no Redis answers. It reads ahead meanwhile. After the end of
// the input it tries for at most appendTimeout.
func openWithRetry(cmd *cobra.Command, c *settings.Config) (*stream.Log, redis.UniversalClient, error) {
	log, client, err := openEventLog(cmd.Context(), c)
	if !backend.Away(err) {
		return log, client, err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v; events wait until Redis answers\n", err)
	ctx, end := context.WithCancel(cmd.Context())
	defer end()
	cmd.SetIn(readAhead(cmd.InOrStdin(), func(n int) {
		if n == 0 {
			end()
		}
		time.AfterFunc(appendTimeout, end)
	}))
	for wait := firstWait; backend.Away(err) && pause.For(ctx, wait); wait = nextWait(wait) {
		log, client, err = openEventLog(cmd.Context(), c)
	}
	if err == nil {
		fmt.Fprintln(cmd.ErrOrStderr(), "Redis answers")
	}
	return log, client, err
}

// readAhead returns what it reads of `in`, up to 1 MB in advance. At the end it calls ended with the number of bytes.
func readAhead(in io.Reader, ended func(n int)) io.Reader {
	chunks := make(chan []byte, 32)
	out, into := io.Pipe()
	var failed error
	go func() {
		total := 0
		for failed == nil {
			chunk, n := make([]byte, 32<<10), 0
			n, failed = in.Read(chunk)
			total += n
			chunks <- chunk[:n]
		}
		close(chunks)
		ended(total)
	}()
	go func() {
		for chunk := range chunks {
			_, _ = into.Write(chunk) // the reader has gone if it fails
		}
		into.CloseWithError(failed)
	}()
	return out
}

// openEventLog connects to the Redis of --redis and checks that its prefix has as many
// partitions as --partitions. Close the client when the log is no longer used.
func openEventLog(ctx context.Context, c *settings.Config) (log *stream.Log, client redis.UniversalClient, err error) {
	keys, err := stream.NewKeys(c.Stream.Prefix, c.Stream.Partitions)
	if err != nil {
		return nil, nil, err
	}
	if err := settings.NotEmbedded("redis", c.Redis.URL); err != nil {
		return nil, nil, err
	}
	client, err = backend.ConnectRedis(ctx, c.Redis, 0)
	if err != nil {
		return nil, nil, err
	}
	if err = settings.Blame("prefix", stream.CheckMeta(ctx, client, keys)); err == nil {
		log, err = stream.NewLog(client, keys, c.Stream.Retention)
	}
	if err == nil {
		err = log.Verify(ctx)
	}
	if err != nil {
		_ = client.Close()
	}
	return log, client, err
}

// warnings returns a function that warns once if the lines do not look like their format, or if a log is older than
// the events that it becomes.
func warnings(format string, messages io.Writer) func(n int, line string) {
	warned := false
	return func(n int, line string) {
		switch {
		case warned:
		case format == "lines" && strings.ContainsAny(strings.TrimSpace(line)[:1], `{["`):
			warned = true
			fmt.Fprintf(messages, "warning: line %d looks like JSON, and its first word is taken as a key; "+
				"JSON needs --format ndjson\n", n)
		case format == "clf":
			warned = true
			at, _, skip, err := logForm{key: "ip"}.timed(line)
			if err == nil && !skip && time.Since(at) > time.Minute {
				fmt.Fprintf(messages, "warning: the log begins at %s, and its events count as of now; to try a log at "+
					"its own times: streamcounter compare --clf LOG --rules FILE\n", at.Format(time.DateTime))
			}
		}
	}
}

// reportRejected reports the first 20 lines that cannot be read: this one is number `count`.
func reportRejected(messages io.Writer, count int, place string, err error) {
	if count <= 20 {
		fmt.Fprintf(messages, "%s: %v\n", place, err)
	} else if count == 21 {
		fmt.Fprintln(messages, "more lines cannot be read; they are only counted")
	}
}

func (s *appendSummary) print(messages io.Writer) {
	fmt.Fprintf(messages, "appended %d events as %d entries in %.2fs", s.Events, s.Entries, s.Seconds)
	if s.Rejected > 0 {
		fmt.Fprintf(messages, ", %d lines rejected", s.Rejected)
	}
	if s.Refused+s.Unknown > 0 {
		fmt.Fprintf(messages, ", %d not stored, %d perhaps stored", s.Refused, s.Unknown)
	}
	fmt.Fprintln(messages)
	reportSkipped(messages, s.Skipped)
}

// eachLine calls do for each line with its number, from 1, and shows progress on a terminal.
func eachLine(ctx context.Context, in io.Reader, messages io.Writer,
	do func(n int, line string, err error) error) error {
	bar := progress(in, messages)
	defer bar.Finish() //nolint:errcheck // an error only spoils the bar
	reader := progressbar.NewReader(in, bar)
	n, err := compare.EachLine(interruptible(ctx, &reader), do)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("line %d: %w", n, err)
}

// interruptible ends a read when ctx ends. A read of standard input cannot be ended, so the goroutine may outlive
// ctx.
func interruptible(ctx context.Context, in io.Reader) io.ReadCloser {
	out, end := io.Pipe()
	go func() {
		_, err := io.Copy(end, in)
		end.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { end.CloseWithError(ctx.Err()) })
	return out
}

// progress returns a bar for what is read of in. A user who types the lines sees no bar.
func progress(in io.Reader, messages io.Writer) *progressbar.ProgressBar {
	size := int64(-1)
	if f, ok := in.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	return newBar(messages, "appending", size, progressbar.OptionShowBytes(true),
		progressbar.OptionSetVisibility(logging.IsTerminal(messages) && !logging.IsTerminal(in)))
}

// newBar returns a bar that is shown if messages is a terminal.
func newBar(messages io.Writer, what string, size int64, more ...progressbar.Option) *progressbar.ProgressBar {
	options := []progressbar.Option{progressbar.OptionSetWriter(messages), progressbar.OptionSetDescription(what),
		progressbar.OptionSetVisibility(logging.IsTerminal(messages)), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100 * time.Millisecond)}
	return progressbar.NewOptions64(size, append(options, more...)...)
}

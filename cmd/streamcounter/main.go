// Command streamcounter counts how often keys acted within sliding windows, on Redis Streams and NATS. Read serve.go
// next: it lists the parts of a process. internal/node/run.go has the order in which they start.
// internal/settings/config.go has all settings. Each other command is a file. docs/architecture.md, "Where to read",
// lists the files on the way of a check and of an event.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	_ "time/tzdata" // for machines without time zones

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// exitError ends the program with a code and, if it has one, a message.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// interrupted turns an error that Ctrl-C caused into its exit code. If err joins other errors too, such as keys that
// could not be removed, they are still reported.
func interrupted(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok && len(several.Unwrap()) > 1 {
		return exitError{130, err}
	}
	return exitError{code: 130}
}

const exitUsage = 2

// exitTwo marks a command whose exit code 1 is an answer: any error ends it with 2.
var exitTwo = map[string]string{errorCode: "2"}

const errorCode = "error-code"

// reloading are the commands whose processes read their files again on SIGHUP.
var reloading = []string{"serve", "work", "sinks", "dev", ratelimitName}

func main() {
	root, args := newRoot(), arguments(os.Args)
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if cmd, _, err := root.Find(args); err == nil && slices.Contains(reloading, cmd.Name()) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // until the process follows its files: no effect
	} else if !signal.Ignored(syscall.SIGHUP) { // nohup
		ends = append(ends, syscall.SIGHUP) // the terminal has closed
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	// The first signal asks for a clean stop, a second one ends at once.
	context.AfterFunc(ctx, stop)
	redis.SetLogger(&backend.RedisLog)
	os.Exit(run(ctx, root, args))
}

// arguments returns the arguments of the program. If the program's own name is ratelimit, as in the image that
// replaces envoyproxy/ratelimit, it runs the command ratelimit.
func arguments(args []string) []string {
	if filepath.Base(args[0]) == ratelimitName {
		return append([]string{ratelimitName}, args[1:]...)
	}
	return args[1:]
}

// output remembers the first error of writing, such as that of a full disk, so that no command has to look for it.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// run executes one command line and returns the exit code. If the output could not be written, it is that of an error,
// whatever exit code the command has.
func run(ctx context.Context, root *cobra.Command, args []string) int {
	out := &output{Writer: root.OutOrStdout()}
	root.SetOut(out)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if out.err != nil && ctx.Err() == nil && (err == nil || err.Error() == "") {
		err = out.err
	}
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(root.ErrOrStderr(), "streamcounter: "+settings.AsSet(text, cmd.Flags()))
	}
	if exit, ok := errors.AsType[exitError](err); ok {
		return exit.code
	}
	if _, ok := errors.AsType[settings.UsageError](err); ok || cmd.Annotations[errorCode] == "2" {
		return exitUsage
	}
	return 1
}

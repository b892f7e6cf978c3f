package natsconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"
)

const (
	shownText      = 256  // bytes of an error that are shown
	shownSubject   = 4096 // bytes of an error that names a subject, which has at most this length
	shortestSecret = 3    // shorter texts are no secrets, and hiding them would hide common letters
	masked         = "xxxxx"
	// Up to linesAtOnce lines of a kind are logged at once, and then one every secondsPerLine.
	linesAtOnce, secondsPerLine = 5, 10
)

// webToken matches a JWT: a server could repeat the one that we sent.
var webToken = regexp.MustCompile(`eyJ[A-Za-z0-9_=-]{8,}(\.[A-Za-z0-9_=-]*)*`)

// show returns a server's text in a form that errors and logs may show.
func (d *dialer) show(text string, most int) string {
	return printable(cut(webToken.ReplaceAllString(d.secrets.Replace(text), masked), most))
}

// cut shortens a text to this many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}

// printable replaces characters that a terminal or a log could interpret as something other than text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// short is an error of the library with a bounded text. It still unwraps to the original error.
type short struct{ error }

func (e short) Error() string { return printable(cut(e.error.Error(), shownText)) }
func (e short) Unwrap() error { return e.error }

func shorten(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, nats.ErrSecureConnWanted) {
		err = fmt.Errorf("%w: the server has no TLS; give nats:// and no files for TLS", err)
	}
	return short{err}
}

// kind is the rate limit of the log lines with one text.
type kind struct {
	limit   *rate.Limiter
	dropped int // lines that were not logged since the last one
}

// reporter follows a connection: it sets Status, and logs at a bounded rate. Its methods are callbacks of the
// library, which calls them one at a time. Without callbacks the library writes to stderr.
type reporter struct {
	log    *slog.Logger
	status *Status
	waited bool             // the first attempt has failed
	kinds  map[string]*kind // by their texts
}

func newReporter(log *slog.Logger, s *Status) *reporter {
	return &reporter{log: log, status: s, kinds: map[string]*kind{}}
}

func (r *reporter) logLimited(level slog.Level, text string, args ...any) {
	k := r.kinds[text]
	if k == nil {
		k = &kind{limit: rate.NewLimiter(rate.Limit(1.0/secondsPerLine), linesAtOnce)}
		r.kinds[text] = k
	}
	if !k.limit.Allow() {
		k.dropped++
		return
	}
	if k.dropped > 0 {
		args = append(args, "more_of_these", k.dropped)
		k.dropped = 0
	}
	r.log.Log(context.Background(), level, text, args...)
}

func (r *reporter) disconnected(_ *nats.Conn, err error) {
	r.status.connected.Store(false)
	r.status.disconnects.Add(1)
	if err != nil {
		r.logLimited(slog.LevelWarn, "NATS is disconnected, trying again", "error", shorten(err))
	}
}

// connected is called for the first connection.
func (r *reporter) connected(nc *nats.Conn) {
	r.status.connected.Store(true)
	if r.waited {
		r.logLimited(slog.LevelInfo, "NATS is connected", "server", nc.ConnectedAddr())
	}
}

func (r *reporter) reconnected(nc *nats.Conn) {
	r.status.connected.Store(true)
	r.logLimited(slog.LevelInfo, "NATS is connected again", "server", nc.ConnectedAddr())
}

func (r *reporter) refused(_ *nats.Conn, err error) {
	r.waited = true
	r.logLimited(slog.LevelWarn, "connecting to NATS failed, trying again", "error", shorten(err))
}

// failed receives errors that the library finds outside of an operation: a refused subject, a slow subscriber, or an
// attempt to connect that the server refuses.
func (r *reporter) failed(_ *nats.Conn, s *nats.Subscription, err error) {
	args := []any{"error", shorten(err)}
	if s != nil {
		args = append(args, "subject", cut(s.Subject, shownText))
	}
	r.logLimited(slog.LevelWarn, "NATS reports an error", args...)
}

func (r *reporter) closed(nc *nats.Conn) {
	r.status.connected.Store(false)
	err := shorten(nc.LastError())
	r.log.Error("the NATS library has closed the connection for good", "error", err)
	if r.status.OnClosed != nil {
		r.status.OnClosed(err)
	}
}

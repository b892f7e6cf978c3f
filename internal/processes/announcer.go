package processes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"github.com/streamcounter/streamcounter/internal/pause"
	"github.com/streamcounter/streamcounter/internal/redisclient"
	"github.com/streamcounter/streamcounter/lua"
	"github.com/streamcounter/streamcounter/stream"
)

// Config of an Announcer. Redis, Keys, Name, Fingerprint and Registry are required;
// zero elsewhere means the default.
type Config struct {
	Redis redis.UniversalClient
	Keys  *stream.Keys
	// Name of this process, unique among all of the prefix.
	Name string
	// Fingerprint returns the fingerprint of the rules in force.
	Fingerprint func() string
	Registry    prometheus.Registerer
	// Every is how often the process announces itself; default 5s. After three times that without an announcement,
	// other processes assume that it is gone.
	Every time.Duration
	// Grace is how long others may have other rules before a warning is logged; default Grace.
	Grace time.Duration
	Log   *slog.Logger
}

// Announcer announces to other processes which rules this process has. It logs and measures which other processes
// have other rules. It also keeps the number of partitions in Redis: a process with another number does not start.
type Announcer struct {
	config   Config
	lua      *lua.Caller
	disagree prometheus.Gauge

	seen    string // fingerprints of the rules that differed at the last comparison; "" if none did
	since   int64  // Redis's time when these were seen first
	warned  bool   // the log has a warning about these
	refused bool   // Redis refuses the announcement, and this was logged

	mismatch time.Time // when a mismatch of the prefix was logged last
}

// NewAnnouncer registers its metric; nothing runs yet.
func NewAnnouncer(c Config) *Announcer {
	c.Every, c.Grace = cmp.Or(c.Every, 5*time.Second), cmp.Or(c.Grace, Grace)
	c.Log = cmp.Or(c.Log, slog.Default())
	return &Announcer{config: c, lua: lua.NewCaller(c.Redis),
		disagree: promauto.With(c.Registry).NewGauge(prometheus.GaugeOpts{
			Name: "streamcounter_rules_disagree",
			Help: "Other processes of the prefix that run with other rules than this one."})}
}

// Run announces the process until ctx ends, and then announces that it is gone.
func (a *Announcer) Run(ctx context.Context) {
	for {
		if err := a.announce(ctx); err != nil && ctx.Err() == nil {
			a.failed(err)
		}
		if !pause.For(ctx, a.config.Every) {
			break
		}
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := a.config.Redis.HDel(within, a.config.Keys.Processes(), a.config.Name).Err(); err != nil {
		a.config.Log.Debug("removing this process's announcement failed", "error", err)
	}
}

// failed logs once that Redis refuses the announcement; other parts log an outage.
func (a *Announcer) failed(err error) {
	level := slog.LevelDebug
	if (redisclient.IsRefusal(err) || redis.HasErrorPrefix(err, "NOPERM")) && !a.refused {
		a.refused, level = true, slog.LevelWarn
	}
	a.config.Log.Log(context.Background(), level,
		"announcing this process failed: others cannot see whether their rules are the same, or which library it uses",
		"error", err)
}

func (a *Announcer) announce(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, a.config.Every)
	defer cancel()
	a.checkMeta(within)
	own := a.config.Fingerprint()
	r := a.lua.Call(within, "announce", nil, []string{a.config.Keys.Processes()}, lua.Now(0).Arg(), a.config.Name, own,
		3*a.config.Every.Milliseconds())
	now, all := r.Integer(), []Process(nil)
	for r.More() {
		all = append(all, Process{Name: r.Text(), Fingerprint: r.Text(), SinceMs: r.Integer()})
	}
	if err := r.End(); err != nil {
		return fmt.Errorf("announcing in %s: %w", a.config.Keys.Processes(), err)
	}
	a.compare(own, all, now)
	return a.noteLibrary(within, now)
}

// checkMeta records the number of partitions again if Redis has lost it, for example all data. If Redis has another
// number now, it logs this once a minute. It logs no other failure, because the announcement then fails too.
func (a *Announcer) checkMeta(ctx context.Context) {
	err := stream.CheckMeta(ctx, a.config.Redis, a.config.Keys)
	if errors.Is(err, stream.ErrMismatch) && time.Since(a.mismatch) >= time.Minute {
		a.mismatch = time.Now()
		a.config.Log.Error("the settings of the prefix have changed: keys are counted in two places",
			"error", err, "fix", "stop the processes that have another number")
	}
}

// noteLibrary records which library of Redis Functions this process uses, so that nobody deletes it (doctor --prune).
func (a *Announcer) noteLibrary(ctx context.Context, now int64) error {
	lasts := 3 * a.config.Every
	pipe := a.config.Redis.Pipeline()
	pipe.ZAdd(ctx, a.config.Keys.Libraries(), redis.Z{Score: float64(now + lasts.Milliseconds()),
		Member: lua.Library().Name})
	pipe.PExpire(ctx, a.config.Keys.Libraries(), lasts)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("recording the library in %s: %w", a.config.Keys.Libraries(), err)
	}
	a.refused = false
	return nil
}

// compare compares the rules of other processes with those of this process. A warning is logged again only if the set
// of differing rules changes, not if the processes change: a process that starts again and again with other rules is
// reported once.
func (a *Announcer) compare(own string, all []Process, now int64) {
	others := 0
	for _, p := range all {
		if p.Fingerprint != own {
			others++
		}
	}
	a.disagree.Set(float64(others))
	groups := ByRules(all)
	if others == 0 {
		if a.warned {
			a.config.Log.Info("all processes run with the same rules again", "rules", own)
		}
		a.seen, a.warned = "", false
		return
	}
	if differ := fingerprints(groups); differ != a.seen {
		a.seen, a.since, a.warned = differ, now, false
	}
	if !a.warned && now-a.since >= a.config.Grace.Milliseconds() {
		a.config.Log.Warn("processes run with different rules: they publish decisions that contradict each other",
			"own", own, "processes", Words(groups), "fix", "give all processes the same rules file")
		a.warned = true
	}
}

func fingerprints(groups [][]Process) string {
	var out []string
	for _, g := range groups {
		out = append(out, g[0].Fingerprint)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/internal/english"
)

// NATSConfig is what streamcounter expects of a NATS server.
type NATSConfig struct {
	Prefix string // required
	// Replicas with which the streams are created; default 1.
	Replicas int
	// Monitor is the URL of the server's monitoring port, which reports how often the server syncs to disk, and its
	// storage; empty: not checked.
	Monitor string
}

// requestTimeout bounds one request.
const requestTimeout = 2 * time.Second

// NATS examines the server that nc is connected to. ctx bounds it. The caller keeps the connection; its error handler
// is replaced.
func NATS(ctx context.Context, nc *nats.Conn, config NATSConfig) []Finding {
	config.Replicas = cmp.Or(config.Replicas, 1)
	n := &natsExaminer{config: config}
	nc.SetErrorHandler(n.refused)
	all := []Finding{natsVersion(nc.ConnectedServerVersion())}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return append(all, notChecked("nats.jetstream", err, ""))
	}
	n.js = js
	account, ok := n.account(ctx)
	all = append(all, account...)
	if !ok {
		return all
	}
	fewest := 0 // replicas of the stream that has the fewest
	for i, want := range alerts.Streams(config.Prefix, config.Replicas) {
		findings, replicas := n.stream(ctx, want)
		all = append(all, findings...)
		if i == 0 || replicas < fewest {
			fewest = replicas
		}
	}
	if config.Monitor == "" {
		return append(all, syncOf(nil, fewest, nil))
	}
	jsz, err := askMonitor(ctx, config.Monitor)
	return append(all, storageOf(jsz, err), syncOf(jsz, fewest, err))
}

// natsExaminer sends requests and receives refusals. The server sends a refusal separately from the answer; without
// it, the request would only time out.
type natsExaminer struct {
	config NATSConfig
	js     jetstream.JetStream

	mu   sync.Mutex
	stop context.CancelCauseFunc // ends the request that is being sent
}

var errRefused = errors.New("NATS refuses it")

func (n *natsExaminer) refused(_ *nats.Conn, _ *nats.Subscription, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if errors.Is(err, nats.ErrPermissionViolation) && n.stop != nil {
		n.stop(fmt.Errorf("%w: %w", errRefused, err))
	}
}

// ask sends one request; its error wraps errRefused if this user may not send it.
func (n *natsExaminer) ask(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	n.mu.Lock()
	n.stop = stop
	n.mu.Unlock()
	err := do(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errRefused) {
		return cause
	}
	return err
}

func natsVersion(have string) Finding {
	const check = "nats.version"
	if older(have, alerts.OldestServer) {
		return found(check, have+", needed is "+alerts.OldestServer+" or later").as(Problem,
			"throttle decisions need per-message TTL, so the streams cannot be made", "upgrade NATS")
	}
	return found(check, have)
}

// account checks JetStream's limits; ok is false if JetStream is not available.
func (n *natsExaminer) account(ctx context.Context) (all []Finding, ok bool) {
	const check = "nats.jetstream"
	var info *jetstream.AccountInfo
	err := n.ask(ctx, func(ctx context.Context) (err error) {
		info, err = n.js.AccountInfo(ctx)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return []Finding{found(check, "JetStream is off").as(Problem,
			"decisions and alerts have nowhere to go: they wait in the outbox",
			"jetstream { store_dir: ... } in the server's configuration (deploy/nats.conf)")}, false
	case err != nil:
		return []Finding{notChecked(check, err, "let it publish $JS.API.INFO")}, true
	}
	// The throttle stream is on disk, so memory is only shown, without a severity.
	used, most := info.Store, info.Limits.MaxStore
	f := found(check, fmt.Sprintf("on; storage %s%s, memory %s%s, %s%s",
		size(int64(used)), limit(most, size), size(int64(info.Memory)), limit(info.Limits.MaxMemory, size),
		english.Plural(info.Streams, "stream"),
		limit(int64(info.Limits.MaxStreams), func(n int64) string { return fmt.Sprint(n) })))
	if max(most, info.Limits.MaxMemory, int64(info.Limits.MaxStreams)) < 0 {
		f.Found += " (no limits set)"
	}
	return []Finding{byUse(f, used, most, "a full account refuses decisions and alerts: they wait in the outbox",
		"raise the account's storage, or shorten max_age of the alerts")}, true
}

// byUse grades a finding by how much of a limit is used; 0 or less: there is no limit.
func byUse(f Finding, used uint64, most int64, why, fix string) Finding {
	if most <= 0 {
		return f
	}
	return grade(f, int64(used), most/10*8, most/100*95, why, fix)
}

func limit(n int64, word func(int64) string) string {
	if n < 0 {
		return ""
	}
	return " of " + word(n)
}

// stream compares one stream with the one that alerts would create, and returns its replicas, or 0 if they are not
// known.
func (n *natsExaminer) stream(ctx context.Context, want jetstream.StreamConfig) (all []Finding, replicas int) {
	check := "nats." + want.Name
	var s jetstream.Stream
	err := n.ask(ctx, func(ctx context.Context) (err error) {
		s, err = n.js.Stream(ctx, want.Name)
		return err
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return []Finding{found(check, "does not exist yet").as(Note,
			"the first `work` that reaches NATS makes it", "")}, 0
	case err != nil:
		return []Finding{notChecked(check, err, "let it publish $JS.API.STREAM.INFO."+want.Name)}, 0
	}
	info := s.CachedInfo()
	for _, d := range alerts.Differences(want, info.Config) {
		f := Finding{Check: check, Severity: Warning, Found: d.String(),
			Why: "this version would make it otherwise, and changes no stream that exists",
			Fix: "nats stream edit " + want.Name}
		switch d.Setting {
		case "subjects", "allow_msg_ttl":
			f.Severity, f.Why = Problem, "publishing fails, so decisions or alerts wait in the outbox"
		case "max_msgs_per_subject":
			f.Why = "the snapshot for subscribers that come later is one message per subject"
		}
		all = append(all, f)
	}
	if info.Cluster != nil {
		for _, peer := range info.Cluster.Replicas {
			if peer.Offline || !peer.Current {
				all = append(all, found(check, "the replica on "+peer.Name+" is behind or offline").as(Warning,
					"without a majority the stream takes nothing", "look at that server"))
			}
		}
	}
	if len(all) == 0 {
		all = append(all, found(check, fmt.Sprintf("%s, %s, duplicates seen within %v",
			english.Plural(int(info.State.Msgs), "message"), english.Plural(info.Config.Replicas, "replica"),
			info.Config.Duplicates)))
	}
	return all, info.Config.Replicas
}

// serverState is what the monitoring port reports about JetStream of the whole server.
type serverState struct {
	Store  uint64 `json:"storage"`
	Config struct {
		MaxStore int64         `json:"max_storage"`
		Interval time.Duration `json:"sync_interval"`
		Always   bool          `json:"sync_always"`
	} `json:"config"`
}

// storageOf reports the storage of all accounts together. The limits of the account do not tell when it is full.
func storageOf(is *serverState, err error) Finding {
	f := Finding{Check: "nats.storage", Severity: OK}
	if err != nil {
		return notChecked(f.Check, err, "")
	}
	f.Found = size(int64(is.Store)) + " used by all accounts"
	if most := is.Config.MaxStore; most > 0 {
		f.Found = size(int64(is.Store)) + " of " + size(most) + " used by all accounts"
	}
	return byUse(f, is.Store, is.Config.MaxStore, "a full server refuses decisions and alerts: they wait in the outbox",
		"raise max_file_store in the server's configuration, or free its disk")
}

// syncOf reports how often JetStream writes to disk. is and err are nil if no monitoring port was given.
func syncOf(is *serverState, replicas int, err error) Finding {
	const check = "nats.sync"
	const why = "a crash of the machine loses acknowledged messages that were not synced, if there are no replicas"
	switch {
	case replicas >= 3:
		return found(check, english.Plural(replicas, "replica")+" keep what one machine loses")
	case err != nil:
		return found(check, "not checked: "+err.Error()).as(Warning, why, "--nats-monitor http://HOST:8222")
	case is == nil:
		f := found(check, "not checked: how often the server syncs (its default is every 2 minutes), and its storage")
		return f.as(Note, why, "give --nats-monitor, or look for sync_interval and max_file_store in its configuration")
	case is.Config.Always:
		return found(check, "at each message")
	}
	every := cmp.Or(is.Config.Interval, 2*time.Minute)
	f := found(check, fmt.Sprintf("every %v", every))
	if every <= 10*time.Second {
		return f
	}
	return f.as(Warning, why, "sync_interval: 1s (deploy/nats.conf), or three servers and --nats-replicas 3")
}

func askMonitor(ctx context.Context, monitor string) (*serverState, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+"/jsz?config=true",
		nil)
	if err != nil {
		return nil, errors.New("not a URL") // the error contains the URL, which may have a password
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, errors.New("the monitoring port does not answer")
	}
	defer resp.Body.Close()
	is := &serverState{}
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<20)).Decode(is); err != nil ||
		resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the monitoring port answers /jsz with %s", resp.Status)
	}
	return is, nil
}

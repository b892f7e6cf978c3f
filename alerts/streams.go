package alerts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// OldestServer is the oldest NATS version that has per-message TTL. An older server accepts the stream of decisions
// without an error and keeps each decision forever.
const OldestServer = "2.11"

// ErrOldServer: the NATS server is older than OldestServer.
var ErrOldServer = errors.New("the NATS server is older than " + OldestServer +
	", which throttle decisions need for per-message TTL")

// HasNoLeader reports whether an error can be that of a cluster without a leader: too many of its servers are down, or
// it elects one now.
func HasNoLeader(err error) bool {
	var refused *jetstream.APIError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.As(err, &refused) && refused.ErrorCode == 10008 // it has no name in the library
}

// checkServer returns ErrOldServer, with the version, for a server that is too old.
func checkServer(nc *nats.Conn) error {
	var major, minor int
	version := nc.ConnectedServerVersion()
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n == 2 && (major < 2 || major == 2 && minor < 11) {
		return fmt.Errorf("%w: %s is %s", ErrOldServer, nc.ConnectedAddr(), version)
	}
	return nil
}

// StreamNames returns the names of the two streams of a prefix: SC_THROTTLE and SC_ALERTS for "sc".
func StreamNames(prefix string) (throttle, alerts string) {
	p := strings.ToUpper(prefix)
	return p + "_THROTTLE", p + "_ALERTS"
}

// Streams returns the configurations with which the two streams of a prefix are created. replicas is 1 or, on a NATS
// cluster, 3 or 5.
//
// The server flushes to disk every two minutes by default (sync_interval), so a
// crash of the whole machine can lose acknowledged messages of a stream without
// replicas.
func Streams(prefix string, replicas int) []jetstream.StreamConfig {
	throttle, alerts := StreamNames(prefix)
	return []jetstream.StreamConfig{{
		Name:        throttle,
		Description: "Throttled keys: the last decision of each rule and key",
		Subjects:    []string{prefix + ".throttle.>"},
		Retention:   jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxMsgsPerSubject: 1,
		AllowMsgTTL:       true,
		Duplicates:        2 * time.Minute,
		Replicas:          replicas,
	}, {
		Name:        alerts,
		Description: "Thresholds that keys reached or fell below",
		Subjects:    []string{prefix + ".alert.>"},
		Retention:   jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxAge:     7 * 24 * time.Hour,
		Duplicates: 2 * time.Minute,
		Replicas:   replicas,
	}}
}

// EnsureStreams creates the streams that are missing. A stream that exists is never altered. If it differs in a
// setting that matters here, the difference is returned for the operator to see.
func EnsureStreams(ctx context.Context, js jetstream.JetStream, want []jetstream.StreamConfig) (differences []string,
	err error) {
	for _, w := range want {
		s, err := js.Stream(ctx, w.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			_, err = js.CreateStream(ctx, w)
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
				s, err = js.Stream(ctx, w.Name) // another process was first
			}
		}
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", w.Name, err)
		}
		if s != nil {
			for _, d := range Differences(w, s.CachedInfo().Config) {
				differences = append(differences, d.String())
			}
		}
	}
	return differences, nil
}

// Difference is one setting of a stream that differs from the value that we would set.
type Difference struct {
	Stream, Setting string // the setting in JetStream's own words: max_age
	Want, Have      any
}

func (d Difference) String() string {
	return fmt.Sprintf("stream %s has %s %v, expected %v", d.Stream, d.Setting, d.Have, d.Want)
}

// Differences compares a stream with what it should be, in the settings that matter here.
func Differences(want, have jetstream.StreamConfig) []Difference {
	var out []Difference
	for _, d := range []Difference{
		{"", "subjects", want.Subjects, have.Subjects},
		{"", "retention", want.Retention, have.Retention},
		{"", "discard", want.Discard, have.Discard},
		{"", "max_msgs_per_subject", max(want.MaxMsgsPerSubject, 0), max(have.MaxMsgsPerSubject, 0)},
		{"", "allow_msg_ttl", want.AllowMsgTTL, have.AllowMsgTTL},
		{"", "max_age", want.MaxAge, have.MaxAge},
		{"", "duplicate_window", want.Duplicates, have.Duplicates},
		{"", "num_replicas", want.Replicas, min(want.Replicas, have.Replicas)}, // more are right too
	} {
		if fmt.Sprint(d.Want) != fmt.Sprint(d.Have) {
			d.Stream = want.Name
			out = append(out, d)
		}
	}
	return out
}

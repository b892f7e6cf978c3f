package sinks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/alerts"
	"github.com/streamcounter/streamcounter/api"
)

// StreamName returns the name of the stream in which the sinks of a prefix keep what a restart must not lose: which
// process delivers for a sink, its position, and which alerts are active in an Alertmanager.
func StreamName(prefix string) string { return strings.ToUpper(prefix) + "_SINKS" }

func streamConfig(prefix string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: StreamName(prefix), Description: "The process that delivers for each sink, and which alerts are active",
		Subjects:  []string{prefix + ".sink.>"},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
		MaxMsgsPerSubject: 1, AllowMsgTTL: true, Replicas: replicas,
	}
}

// state is what one sink keeps in the stream.
type state struct {
	js     jetstream.JetStream
	prefix string // of all sinks
	sink   string
}

func (s state) subject(rest string) string { return s.prefix + ".sink." + s.sink + "." + rest }

// last returns the last message of a subject, or nil if the subject has no message.
func (s state) last(ctx context.Context, rest string) (*jetstream.RawStreamMsg, error) {
	stream, err := s.js.Stream(ctx, StreamName(s.prefix))
	if err != nil {
		return nil, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.subject(rest))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s.subject(rest), err)
	}
	return m, nil
}

// position is the sequence of SC_ALERTS up to which all alerts were delivered when it was last stored, and the time
// when it was stored, by the server's clock.
type position struct {
	sequence uint64
	at       time.Time
}

// position returns nil if no position is stored.
func (s state) position(ctx context.Context) (*position, error) {
	m, err := s.last(ctx, "position")
	if m == nil {
		return nil, err
	}
	sequence, err := strconv.ParseUint(string(m.Data), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", m.Subject, err)
	}
	return &position{sequence, m.Time}, nil
}

func (s state) setPosition(ctx context.Context, l *lock, sequence uint64) error {
	return l.publish(ctx, &nats.Msg{Subject: s.subject("position"), Data: strconv.AppendUint(nil, sequence, 10)})
}

// identity returns a text that is equal for alerts that are one alert to Alertmanager.
func identity(t api.Transition) string {
	return fmt.Sprintf("%s %d %d %v %s", t.Rule, t.Level, t.WindowMs, t.Shadow, t.Key)
}

// note stores that an alert is active, or that it is no longer active if it has cleared.
func (s state) note(ctx context.Context, l *lock, t api.Transition) error {
	sum := sha256.Sum256([]byte(identity(t)))
	m := &nats.Msg{Subject: s.subject("alert." + hex.EncodeToString(sum[:16])), Header: nats.Header{}}
	if t.State == api.StateCleared {
		m.Header.Set(jetstream.MsgTTLHeader, "1s")
	} else {
		body, err := json.Marshal(t)
		if err != nil {
			return err
		}
		m.Data = body
	}
	if err := l.publish(ctx, m); err != nil {
		return fmt.Errorf("recording an alert in %s: %w", StreamName(s.prefix), err)
	}
	return nil
}

// activeAlerts returns the active alerts by their identities.
func (s state) activeAlerts(ctx context.Context) (list map[string]api.Transition, err error) {
	consumer, err := s.activeConsumer(ctx)
	if err == nil {
		list, err = alertsOf(ctx, consumer)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the active alerts of %s: %w", StreamName(s.prefix), err)
	}
	return list, nil
}

// activeConsumer returns a consumer of what note has stored.
func (s state) activeConsumer(ctx context.Context) (jetstream.Consumer, error) {
	return s.js.OrderedConsumer(ctx, StreamName(s.prefix), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{s.subject("alert.>")}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		InactiveThreshold: time.Minute})
}

// alertsOf reads all messages of activeConsumer. A message may expire on the server before it comes (see note). So if
// no message comes, alertsOf requests from the server how many are left.
func alertsOf(ctx context.Context, consumer jetstream.Consumer) (map[string]api.Transition, error) {
	out := map[string]api.Transition{}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	for left := consumer.CachedInfo().NumPending; left > 0; {
		within, cancel := context.WithTimeout(ctx, time.Second)
		m, err := messages.Next(jetstream.NextContext(within))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			info, err := consumer.Info(ctx)
			if err != nil {
				return nil, err
			}
			left = info.NumPending
			continue
		}
		if err != nil {
			return nil, err
		}
		var t api.Transition
		if json.Unmarshal(m.Data(), &t) == nil && t.Validate() == nil && t.State == api.StateRaised {
			out[identity(t)] = t
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		left = meta.NumPending
	}
	return out, nil
}

// ensure creates the stream if it is missing.
func ensure(ctx context.Context, js jetstream.JetStream, prefix string, replicas int) error {
	_, err := alerts.EnsureStreams(ctx, js, []jetstream.StreamConfig{streamConfig(prefix, replicas)})
	return err
}

package alerts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/subscription"
)

// History reads the messages that JetStream keeps of single keys: the alerts of 7 days, and the last throttle
// decision of each rule. The alerts of level 100 show when a key was throttled. History only creates consumers, so
// the permissions of the user `watch` in deploy/nats-permissions.conf are enough.
type History struct {
	js     jetstream.JetStream
	prefix string
}

// How much is read to find the newest messages. JetStream can only read forwards.
const (
	readWhole = 1000                 // up to this many messages of a key are read at once
	firstSpan = 2 * time.Minute      // if there are more: first those of this span before the page's end,
	spanTimes = 8                    // then of spans that are so many times longer, until there are enough
	longest   = 8 * 24 * time.Hour   // the stream keeps 7 days
	fetchStep = 500                  // messages of one fetch
	unusedFor = 10 * time.Second     // the server deletes a consumer that is unused for this time
	slack     = 2 * time.Millisecond // a stored time is rounded by at most this
)

// NewHistory uses the caller's connection.
func NewHistory(nc *nats.Conn, prefix string) (*History, error) {
	js, err := open(nc, prefix, 2*time.Second)
	return &History{js, prefix}, err
}

// place is the position of an alert in the stream.
type place struct {
	sequence uint64
	stored   time.Time
}

func (p place) String() string { return fmt.Sprintf("%d-%d", p.sequence, p.stored.UnixMilli()) }

func parsePlace(text string) (place, error) {
	sequence, stored, _ := strings.Cut(text, "-")
	n, err := strconv.ParseUint(sequence, 10, 64)
	ms, msErr := strconv.ParseInt(stored, 10, 64)
	if err := errors.Join(err, msErr); err != nil {
		return place{}, fmt.Errorf("%w: place %s of an alert", api.ErrBadRequest, api.Shorten(text))
	}
	return place{n, time.UnixMilli(ms).Add(slack)}, nil
}

// Alerts returns the newest n alerts of a key that are before a place, the newest first, and the place of each.
// before is "" for the newest of all.
func (h *History) Alerts(ctx context.Context, key, before string, n int) ([]api.Transition, []string, error) {
	if n < 0 {
		return nil, nil, fmt.Errorf("%w: %d alerts are asked for, expected 0 or more", api.ErrBadRequest, n)
	}
	end := place{sequence: 1<<64 - 1, stored: time.Now()}
	if before != "" {
		var err error
		if end, err = parsePlace(before); err != nil {
			return nil, nil, err
		}
	}
	_, stream := StreamNames(h.prefix)
	r := reading{h.js, stream, h.prefix + ".alert.*.*." + api.KeyToken(key), end}
	list, whole, err := r.since(ctx, time.Time{}, readWhole)
	for span := firstSpan; err == nil && !whole; span *= spanTimes {
		if list, _, err = r.since(ctx, end.stored.Add(-span), 0); len(list) >= n || span > longest {
			break
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", stream, err)
	}
	slices.Reverse(list)
	list = list[:min(n, len(list))]
	transitions, places := make([]api.Transition, len(list)), make([]string, len(list))
	for i, one := range list {
		transitions[i], places[i] = one.Transition, one.String()
	}
	return transitions, places, nil
}

// Decisions returns the last throttle decision of each rule of a key, the newest first.
func (h *History) Decisions(ctx context.Context, key string) ([]api.Transition, error) {
	stream, _ := StreamNames(h.prefix)
	r := reading{h.js, stream, h.prefix + ".throttle.*." + api.KeyToken(key), place{sequence: 1<<64 - 1}}
	list, _, err := r.since(ctx, time.Time{}, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", stream, err)
	}
	out := make([]api.Transition, len(list))
	for i, one := range list {
		out[i] = one.Transition
	}
	slices.SortFunc(out, func(a, b api.Transition) int {
		return cmp.Or(cmp.Compare(b.AtMs, a.AtMs), strings.Compare(b.Rule, a.Rule))
	})
	return out, nil
}

// reading reads the messages of one subject filter, up to a place.
type reading struct {
	js              jetstream.JetStream
	stream, subject string
	end             place
}

type storedTransition struct {
	api.Transition
	place
}

// since reads the messages that were stored from a time on, or from the beginning if that time is zero. If `most` is
// above 0 and there are more messages than that, it reads nothing and returns whole = false.
func (r reading) since(ctx context.Context, from time.Time, most uint64) (list []storedTransition, whole bool,
	err error) {
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{r.subject},
		DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: unusedFor}
	if !from.IsZero() {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
	}
	consumer, err := r.js.OrderedConsumer(ctx, r.stream, config)
	if errors.Is(err, jetstream.ErrStreamNotFound) { // nothing was published yet
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	pending := consumer.CachedInfo().NumPending
	if most > 0 && pending > most {
		return nil, false, nil
	}
	for pending > 0 && ctx.Err() == nil {
		batch, err := consumer.FetchNoWait(int(min(pending, fetchStep)))
		if err != nil {
			return nil, false, err
		}
		got := uint64(0)
		for m := range batch.Messages() {
			got++
			meta, err := m.Metadata()
			if err != nil {
				return nil, false, err
			}
			if meta.Sequence.Stream >= r.end.sequence {
				return list, true, nil
			}
			if t, err := api.ReadTransition(m.Subject(), m.Data()); err == nil {
				list = append(list, storedTransition{t, place{meta.Sequence.Stream, meta.Timestamp}})
			}
		}
		if err := batch.Error(); err != nil || got == 0 {
			return list, err == nil, err
		}
		pending -= min(got, pending)
	}
	return list, true, ctx.Err()
}

// Follow calls take for each decision and alert that is stored from now on, until ctx ends. It waits for streams that
// do not exist yet. take is called by two goroutines.
func (h *History) Follow(ctx context.Context, take func(api.Transition)) {
	throttle, alert := StreamNames(h.prefix)
	var both sync.WaitGroup
	defer both.Wait()
	for stream, subject := range map[string]string{throttle: ".throttle.>", alert: ".alert.>"} {
		config := subscription.Config{NC: h.js.Conn(), Stream: stream, Subjects: []string{h.prefix + subject},
			From: jetstream.DeliverNewPolicy, Failed: func(error) error { return nil }}
		both.Go(func() {
			_ = subscription.Run(ctx, config, func(d subscription.Delivery) { // it ends with ctx or the connection
				for _, m := range d.Messages {
					if t, err := api.ReadTransition(m.Subject(), m.Data()); err == nil {
						take(t)
					}
				}
			})
		})
	}
}

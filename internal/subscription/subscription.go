// Package subscription reads the messages of a JetStream stream in order, and notices when one could be missing.
//
// It reads through consumers of its own, one session after the other. nats.go's ordered consumer goes on by the
// stream's sequence numbers. So after the stream was deleted and created again, it receives nothing until the new
// stream has as many messages as the old one had.
package subscription

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/internal/pause"
)

const (
	// requestTimeout bounds a request to JetStream.
	requestTimeout = 2 * time.Second
	// If no messages come, a request for messages ends after fetchFor, which shows that NATS works. The server gets
	// nine tenths of that time.
	fetchFor  = 2 * time.Second
	heartbeat = 500 * time.Millisecond
	fetchMost = 1000 // messages per request
	// forgetConsumer is the time after which NATS deletes a consumer that nobody reads from.
	forgetConsumer = 30 * time.Second
	// retryFirst and retryMost bound the wait between two sessions.
	retryFirst, retryMost = 50 * time.Millisecond, time.Second
)

// Config says what is read.
type Config struct {
	NC       *nats.Conn
	Stream   string
	Subjects []string
	From     jetstream.DeliverPolicy // where the first session begins
	// Snapshots lets each later session begin as the first did. Otherwise it begins after the last message that came.
	Snapshots bool
	// Again: an error from this channel ends the session, and another one begins.
	Again <-chan error
	// Failed is called when a session could not begin or ended, but not twice in a row for the same error. If it
	// returns an error, Run returns that.
	Failed func(error) error
}

// Delivery is what Run passes on. One without messages only shows that NATS works.
type Delivery struct {
	Messages []jetstream.Msg
	Begin    bool // a session begins
	Whole    bool // nothing is left to deliver
}

// subscription is used by one goroutine.
type subscription struct {
	Config
	js     jetstream.JetStream
	status chan nats.Status
	take   func(Delivery)

	begun bool // the last session had a consumer

	// sequence and stored are of the last message that came. Before the first one, sequence is 0, and the stream has
	// nothing to deliver from before stored.
	sequence uint64
	stored   time.Time
}

// Run calls take for what comes, until ctx ends, and then returns nil. It returns nats.ErrConnectionClosed when the
// connection was closed for good.
func Run(ctx context.Context, c Config, take func(Delivery)) error {
	js, err := jetstream.New(c.NC, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		return fmt.Errorf("jetstream: %w", err)
	}
	s := &subscription{Config: c, js: js, take: take,
		status: c.NC.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED)}
	defer c.NC.RemoveStatusListener(s.status)
	wait, last := retryFirst, ""
	for ctx.Err() == nil {
		if c.NC.IsClosed() {
			return nats.ErrConnectionClosed
		}
		if c.NC.IsConnected() {
			began := time.Now()
			err := s.session(ctx)
			if ctx.Err() != nil {
				return nil
			}
			if text := fmt.Sprint(err); text != last { // otherwise Failed would get it every second
				if err := c.Failed(err); err != nil {
					return err
				}
				last = text
			}
			if s.begun && time.Since(began) > retryMost {
				wait, last = retryFirst, ""
			}
		}
		pause.Closed(ctx, s.status, time.Now().Add(wait)) // or until it is connected again, or closed
		wait = min(2*wait, retryMost)
	}
	return nil
}

// session reads through its own consumer, until a message could have been missed. The error says why.
func (s *subscription) session(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() { s.watch(ctx, cancel) })
	consumer, err := s.js.CreateConsumer(ctx, s.Stream, s.consumer())
	s.begun = err == nil
	if errors.Is(err, jetstream.ErrStreamNotFound) && s.From == jetstream.DeliverNewPolicy {
		s.From = jetstream.DeliverAllPolicy // all that the stream will have is new
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.Stream, errors.Join(err, context.Cause(ctx)))
	}
	info := consumer.CachedInfo()
	defer s.drop(info.Name)
	if info.NumPending == 0 && s.stored.IsZero() {
		s.stored = info.Created
	}
	s.take(Delivery{Begin: true, Whole: info.NumPending == 0})
	for next := uint64(1); ; {
		n, err := s.fetch(ctx, consumer, next)
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		next += n
	}
}

// watch ends the session when the connection is lost, or when another session is asked for.
func (s *subscription) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		select {
		case status := <-s.status:
			if status != nats.CONNECTED {
				cancel(fmt.Errorf("NATS: %v", status))
			}
		case err := <-s.Again:
			cancel(err)
		case <-ctx.Done():
			return
		}
	}
}

func (s *subscription) consumer() jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		FilterSubjects: s.Subjects, DeliverPolicy: s.From, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: forgetConsumer,
	}
	if !s.Snapshots && !s.stored.IsZero() {
		c.DeliverPolicy, c.OptStartTime = jetstream.DeliverByStartTimePolicy, new(s.stored)
	}
	return c
}

// fetch passes on the messages of one request. Each message has a number, so a gap is noticed.
func (s *subscription) fetch(ctx context.Context, consumer jetstream.Consumer, next uint64) (n uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	batch, err := consumer.Fetch(fetchMost, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(heartbeat))
	if err != nil {
		return 0, fmt.Errorf("asking for messages: %w", err)
	}
	for first := range batch.Messages() {
		var d Delivery
		for m, more := first, true; more; { // messages that are already there are passed on together
			meta, err := m.Metadata()
			if err != nil {
				return n, fmt.Errorf("a message without its number: %w", err)
			}
			if meta.Sequence.Consumer != next+n {
				return n, fmt.Errorf("message %d came where %d was expected", meta.Sequence.Consumer, next+n)
			}
			n++
			d.Whole = meta.NumPending == 0
			if s.isNew(meta) {
				d.Messages = append(d.Messages, m)
			}
			select {
			case m, more = <-batch.Messages():
			default:
				more = false
			}
		}
		s.take(d)
	}
	if err := batch.Error(); err != nil {
		return n, fmt.Errorf("waiting for messages: %w", err)
	}
	s.take(Delivery{Whole: n == 0}) // what was pending may have expired in the meantime
	return n, nil
}

// isNew reports whether a message has not come before, and remembers it. A session that begins after the last message
// gets that message again, because it begins by the time at which a message was stored.
func (s *subscription) isNew(meta *jetstream.MsgMetadata) bool {
	if !s.Snapshots && meta.Timestamp.Equal(s.stored) && meta.Sequence.Stream <= s.sequence {
		return false
	}
	s.sequence, s.stored = meta.Sequence.Stream, meta.Timestamp
	return true
}

// drop deletes a consumer that nobody will read from. If that fails, NATS deletes it after forgetConsumer.
func (s *subscription) drop(consumer string) {
	if !s.NC.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout/4)
	defer cancel()
	_ = s.js.DeleteConsumer(ctx, s.Stream, consumer)
}

// ValidateToken returns an error if a prefix or the name of a rule cannot be one token of a NATS subject.
func ValidateToken(name string) error {
	if name == "" || strings.ContainsAny(name, ".*> \t\r\n") {
		return fmt.Errorf("%q is not a prefix or rule: it cannot be part of a NATS subject", name)
	}
	return nil
}

package sinks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/pause"
)

// maxHeld is how many alerts of a sink may be undelivered in a process; the others wait in JetStream.
const maxHeld = 1000

// session is one period in which this process delivers for the sink.
type session struct {
	*start
	queue    *queue
	attempts context.Context // outlives the session by Stop, so that what was sent is acknowledged
	cancel   context.CancelFunc
	beating  sync.WaitGroup

	number uint64 // the consumer's number of the last message

	mu       sync.Mutex
	held     map[uint64]*held // sequence → an alert that is not acknowledged
	received uint64           // the last sequence that was received, or where the session began
	stored   uint64           // the position that was stored last; used by the heartbeat, and then by end
	logged   time.Time        // when it was last logged that the endpoint fails
}

// newSession begins a session. It ends after ctx, but not after the lock.
func newSession(ctx context.Context, at *start) *session {
	s := &session{start: at, held: map[uint64]*held{}, received: at.ackFloor, stored: at.ackFloor}
	s.attempts, s.cancel = context.WithCancel(at.lock.ctx)
	s.queue = newQueue(&queue{deliver: s.attempt, done: s.acknowledge, retried: s.retried, giveUp: at.sink.GiveUp,
		backoff: at.config.Backoff})
	s.beating.Go(func() { s.heartbeat(ctx) })
	if at.active != nil {
		s.beating.Go(func() { at.active.resend(ctx) })
	}
	return s
}

// end is called when the session's context has ended. It waits for the attempts that have begun. Alerts that were not
// delivered come again, to the process that has the lock next.
func (s *session) end() {
	defer time.AfterFunc(s.config.Stop-2*s.config.lastRequest(), s.cancel).Stop()
	s.queue.working.Wait()
	s.cancel()
	s.beating.Wait()
	within, cancel := context.WithTimeout(context.WithoutCancel(s.lock.ctx), s.config.lastRequest())
	defer cancel()
	s.storePosition(within)
	s.config.Metrics.oldest.WithLabelValues(s.sink.Name).Set(0)
}

// take puts an alert into the queue, or acknowledges a message that is not for this sink. It returns an error if a
// message before this one did not arrive, because the connection broke. JetStream would send that one again after
// AckWait, and so after later alerts of its key: the session must end.
func (s *session) take(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		s.log.Error("ignored a message that JetStream did not send", "subject", m.Subject(), "error", err)
		return nil
	}
	if meta.Sequence.Consumer != s.number+1 {
		return fmt.Errorf("message %d came where %d was expected", meta.Sequence.Consumer, s.number+1)
	}
	s.number++
	sequence := meta.Sequence.Stream
	if sequence > s.received+1 {
		s.lost(ctx, sequence-s.received-1)
	}
	s.mu.Lock()
	_, here := s.held[sequence]
	ignored := sequence <= s.received // JetStream sent it again: new messages come in the stream's order
	s.mu.Unlock()
	if here {
		return nil // it is in the queue
	}
	t, err := api.ReadTransition(m.Subject(), m.Data())
	if err != nil {
		s.log.Error("ignored a message that is not an alert", "subject", m.Subject(), "error", err)
		ignored = true
	}
	h := &held{m, sequence, t}
	ignored = ignored || !s.sink.takes(t)
	s.mu.Lock()
	s.received = max(s.received, sequence)
	if !ignored {
		s.held[sequence] = h
	}
	s.mu.Unlock()
	if ignored {
		_ = m.Ack() // if the acknowledgement is lost, the message comes again
		return nil
	}
	s.queue.add(ctx, h)
	return nil
}

// lost counts alerts that were removed from JetStream, by age or by somebody, before they were delivered.
func (s *session) lost(ctx context.Context, alerts uint64) {
	s.config.Metrics.deliveries.WithLabelValues(s.sink.Name, "expired").Add(float64(alerts))
	s.log.Error("alerts were removed from JetStream before the sink read them", "alerts", alerts)
	s.missed(ctx)
}

// storePosition stores the position up to which all alerts are delivered, if it has changed. JetStream's own
// acknowledged position is not enough, because a purge moves it. storePosition looks up the consumer first: if the
// stream was recreated, it has no consumer, and the position must not be stored.
func (s *session) storePosition(ctx context.Context) {
	s.mu.Lock()
	position := s.received
	for sequence := range s.held {
		position = min(position, sequence-1)
	}
	s.mu.Unlock()
	if position == s.stored {
		return
	}
	if _, err := s.consumer.Info(ctx); err != nil {
		return // the next process finds the position before, and may deliver alerts again
	}
	if err := s.state.setPosition(ctx, s.lock, position); err == nil {
		s.stored = position
	}
}

// missed is called when alerts were lost: one of them may have cleared another alert.
func (s *session) missed(ctx context.Context) {
	if s.active != nil {
		s.active.missed(ctx, s.lock)
	}
}

// attempt sends an alert once.
func (s *session) attempt(_ context.Context, t api.Transition) error {
	if !s.lock.holds() {
		return context.Cause(s.lock.ctx)
	}
	if s.active != nil {
		return s.active.deliver(s.attempts, s.lock, t)
	}
	return s.sink.deliver(s.attempts, s.config.Prefix, t, time.Time{})
}

// acknowledge acknowledges an alert, and returns when JetStream has confirmed this. Without the confirmation, the alert
// could come again, after later alerts of its key.
func (s *session) acknowledge(h *held, outcome string, err error) {
	s.config.Metrics.deliveries.WithLabelValues(s.sink.Name, outcome).Inc()
	if outcome != "delivered" {
		s.log.Error("gave up delivering an alert", "outcome", outcome, "id", h.alert.ID, "key",
			h.alert.Key, "state", h.alert.State, "level", h.alert.Level, "error", err)
	}
	for tries := 0; s.attempts.Err() == nil; tries++ {
		within, cancel := context.WithTimeout(s.attempts, 2*time.Second)
		err := s.confirm(within, h, outcome)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			break
		}
		if tries == 0 && s.attempts.Err() == nil {
			s.log.Warn("JetStream does not confirm an acknowledgement, trying again", "id", h.alert.ID, "error",
				err)
		}
		pause.For(s.attempts, time.Second)
	}
	s.mu.Lock()
	delete(s.held, h.sequence)
	s.mu.Unlock()
}

// confirm acknowledges an alert. Before that, it records an alert that Alertmanager has not taken. A cleared alert
// has cleared, even if it was not delivered. A raised alert that expired is sent again while it is active. A raised
// alert that Alertmanager refuses is not recorded.
func (s *session) confirm(ctx context.Context, h *held, outcome string) error {
	if s.active != nil && (outcome == "expired" || outcome == "dropped" && h.alert.State == api.StateCleared) {
		if err := s.active.record(ctx, s.lock, h.alert); err != nil {
			return err
		}
	}
	return h.msg.DoubleAck(ctx)
}

// logEvery is how often a failing endpoint is logged.
const logEvery = 10 * time.Second

func (s *session) retried(h *held, err error, wait time.Duration) {
	s.config.Metrics.deliveries.WithLabelValues(s.sink.Name, "retried").Inc()
	s.mu.Lock()
	waiting, recent := len(s.held), time.Since(s.logged) < logEvery
	if !recent {
		s.logged = time.Now()
	}
	s.mu.Unlock()
	if recent {
		return
	}
	s.log.Warn("an alert was not delivered, trying again", "id", h.alert.ID, "key", h.alert.Key, "in",
		wait.Round(time.Millisecond).String(), "waiting", waiting, "error", err)
}

// heartbeat tells JetStream that the held alerts are being worked on, and sets the metric of the oldest one's age.
func (s *session) heartbeat(ctx context.Context) {
	for pause.For(ctx, s.config.AckWait/5) {
		s.mu.Lock()
		var oldest time.Duration
		list := make([]*held, 0, len(s.held))
		for _, h := range s.held {
			list = append(list, h)
			oldest = max(oldest, time.Since(h.alert.At()))
		}
		s.mu.Unlock()
		s.config.Metrics.oldest.WithLabelValues(s.sink.Name).Set(oldest.Seconds())
		for _, h := range list {
			_ = h.msg.InProgress()
		}
		s.storePosition(ctx)
	}
}

package api

import "errors"

// Errors a caller branches on. They keep their identity over HTTP: a client
// turns the answer's problem type back into the sentinel (see Problem).
var (
	// ErrBadKey: a key that is empty, over 512 bytes, not UTF-8, or holds a control character.
	ErrBadKey = errors.New("bad key")
	// ErrBadCount: a count that is not a whole number from 1 to 1,000,000,000.
	ErrBadCount = errors.New("bad count")
	// ErrBadValue: a value that a rule counts is missing or cannot be counted.
	ErrBadValue = errors.New("bad value")
	// ErrBadID: an event's id that is over 128 bytes, not UTF-8, or holds a control character.
	ErrBadID = errors.New("bad id")
	// ErrBadTransition: a transition that cannot be published: foreign or corrupt data in the outbox.
	ErrBadTransition = errors.New("bad transition")
	// ErrBadRequest: a request whose form is wrong (JSON, unknown fields, size).
	ErrBadRequest = errors.New("bad request")
	// ErrBodyTooLarge: a request body over the server's bound.
	ErrBodyTooLarge = errors.New("body too large")
	// ErrCostExceedsLimit: a cost that no window of the rule can ever admit.
	ErrCostExceedsLimit = errors.New("cost exceeds limit")
	// ErrNoReservation: no reservation has this id. It was never made, or was settled so long ago that it is
	// forgotten.
	ErrNoReservation = errors.New("no such reservation")
	// ErrReservationExpired: the reservation was not settled in time. Its units were charged
	// then, or freed, as its rule says.
	ErrReservationExpired = errors.New("reservation expired")
	// ErrReservationSettled: the reservation is settled already, in another way than is asked for now.
	ErrReservationSettled = errors.New("reservation settled")
	// ErrNeedsReservation: the rule has an in_flight window, which takes reservations only.
	ErrNeedsReservation = errors.New("key takes reservations only")
	// ErrNoRule: no rule matches the key.
	ErrNoRule = errors.New("no rule matches")
	// ErrOutcomeUnknown: a write was sent and its reply was lost, so it may or
	// may not have happened. Sending it again may count it twice.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrQueueFull: the queue of the producer is full, and the producer is set not to wait.
	ErrQueueFull = errors.New("queue full")
	// ErrClosed: the producer was closed.
	ErrClosed = errors.New("closed")
	// ErrBacklog: workers are too far behind for more events to be taken.
	ErrBacklog = errors.New("workers are behind")
	// ErrUnauthenticated: no token was presented, or the server does not know the token.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrForbidden: the token may not be used for this.
	ErrForbidden = errors.New("not permitted")
	// ErrNoAnswer: nobody decided, so a policy must decide. It comes together with ErrNotSent, ErrOutcomeUnknown or
	// ErrUnavailable.
	ErrNoAnswer = errors.New("no answer")
	// ErrNotSent: the request has certainly charged nothing, because it was never sent or was only a look. It may be
	// sent again.
	ErrNotSent = errors.New("nothing was charged")
	// ErrUnavailable: the store did not answer in time.
	ErrUnavailable = errors.New("store unavailable")
)

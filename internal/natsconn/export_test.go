package natsconn

import (
	"log/slog"

	"github.com/nats-io/nats.go"
)

// ErrorHandler returns a connection's handler for errors outside of an operation.
func ErrorHandler(log *slog.Logger) nats.ErrHandler { return newReporter(log, &Status{}).failed }

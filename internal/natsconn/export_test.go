package natsconn

import (
	"log/slog"

	"github.com/nats-io/nats.go"
)

// ErrorHandler is what a connection has for errors beside an operation.
func ErrorHandler(log *slog.Logger) nats.ErrHandler { return newReporter(log, &Status{}).failed }

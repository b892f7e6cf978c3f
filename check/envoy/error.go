package envoy

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/envoy/config"
)

// statuses: name of an error (api.NameOf) → its gRPC status. Any other error with a name is about the request:
// codes.InvalidArgument.
var statuses = map[string]codes.Code{
	"idempotency-key-reused": codes.AlreadyExists, "no-rule": codes.NotFound,
	"cost-exceeds-limit": codes.FailedPrecondition, "needs-reservation": codes.FailedPrecondition,
	"outcome-unknown": codes.Unavailable, "unavailable": codes.Unavailable,
}

// statusOf returns the gRPC status of an error. The name, which HTTP has in the problem's type, is in an ErrorInfo,
// so that a client gets its sentinel back.
func statusOf(err error) error {
	name := api.NameOf(err)
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, check.ErrorText(err))
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, api.ErrUnavailable):
		return status.Error(codes.DeadlineExceeded, check.ErrorText(err))
	case name == "":
		return status.Error(codes.Internal, check.ErrorText(err))
	}
	code, known := statuses[name]
	if !known {
		code = codes.InvalidArgument
	}
	text := check.ErrorText(err)
	if errors.Is(err, config.ErrNoLimits) {
		text = "no limits yet" // the store has nothing to do with it
	}
	s := status.New(code, text)
	if with, err := s.WithDetails(&errdetails.ErrorInfo{Reason: name, Domain: api.ErrorDomain}); err == nil {
		s = with
	}
	return s.Err()
}

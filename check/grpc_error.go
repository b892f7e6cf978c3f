package check

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamcounter/streamcounter/api"
)

// statusOf gives an error its gRPC status. What HTTP says by the problem's type
// stands in an ErrorInfo, so that a client gets its sentinel back.
func statusOf(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, api.ErrUnavailable):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	p := problemOf(err)
	code := codes.Internal
	switch p.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		code = codes.InvalidArgument
	case http.StatusNotFound:
		code = codes.NotFound
	case http.StatusServiceUnavailable:
		code = codes.Unavailable
	}
	if errors.Is(err, api.ErrCostExceedsLimit) {
		code = codes.FailedPrecondition
	}
	s := status.New(code, err.Error())
	if reason, ours := strings.CutPrefix(p.Type, api.ProblemPrefix); ours {
		if with, err := s.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: api.ErrorDomain}); err == nil {
			s = with
		}
	}
	return s.Err()
}

package envoy

import (
	"errors"
	"net/http"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/streamcounter/streamcounter/internal/inflight"
)

// maxJSON bounds a request, as the requests over gRPC are bounded.
const maxJSON = 256 << 10

// jsonMemory bounds the bodies of all requests together.
const jsonMemory = 16 << 20

// ServeHTTP answers a RateLimitRequest in JSON with a RateLimitResponse, for callers without gRPC: 200 admitted, 429
// over a limit, 400 if the request makes no sense, 408 if its body is late, 500 if nothing could be decided, 503 if
// too many bodies are under way.
func (r *Service) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, free, err := r.bodies.Read(w, req, maxJSON)
	defer free()
	if errors.Is(err, inflight.ErrFull) || errors.Is(err, inflight.ErrSlow) {
		w.Header().Set("Retry-After", "2")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if errors.Is(err, inflight.ErrLate) {
		http.Error(w, err.Error(), http.StatusRequestTimeout)
		return
	}
	message := &rlsv3.RateLimitRequest{}
	if err == nil {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, message)
	}
	if err != nil {
		http.Error(w, "the body is not a RateLimitRequest in JSON: "+err.Error(), http.StatusBadRequest)
		return
	}
	resp, err := r.ShouldRateLimit(req.Context(), message)
	if err != nil {
		code := http.StatusInternalServerError
		if status.Code(err) == codes.InvalidArgument {
			code = http.StatusBadRequest
		}
		http.Error(w, status.Convert(err).Message(), code)
		return
	}
	text, err := protojson.Marshal(resp)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if resp.OverallCode == codeOver {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(text)
}

package httpapi

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore" // of the Go team: first come, first served

	"github.com/streamcounter/streamcounter/check"
	"github.com/streamcounter/streamcounter/check/access"
	"github.com/streamcounter/streamcounter/internal/activity"
	"github.com/streamcounter/streamcounter/internal/crowdsec"
	"github.com/streamcounter/streamcounter/internal/eventlog"
	"github.com/streamcounter/streamcounter/internal/inflight"
	"github.com/streamcounter/streamcounter/stream"
)

// Config of a Server. Checks, Log and Metrics are required.
type Config struct {
	Checks  *check.Service
	Log     *stream.Log
	Metrics *Metrics
	// AppendTimeout bounds one append, and one listing; default 5s.
	AppendTimeout time.Duration
	// MaxBacklog is how old the oldest unread event of a partition may be before more events for it are refused; 0:
	// they are never refused. Backlogs and Keys are required with it.
	MaxBacklog time.Duration
	Backlogs   func(ctx context.Context) (map[int]eventlog.Backlog, error)
	Keys       *stream.Keys
	// BacklogTimeout bounds one call of Backlogs; default 250ms.
	BacklogTimeout time.Duration
	// Extractors are those of GET /v1/check?extractor=NAME; nil: there are none.
	Extractors *access.Extractors
	// Activity gathers the activity of all processes, with the newest of this one; nil: GET /v1/top is refused.
	Activity func(ctx context.Context) (activity.Activity, error)
	// Tracer makes a span for each append of events; nil: none.
	Tracer trace.Tracer
	// Bouncers answers CrowdSec's bouncers at /v1/decisions; nil: there is no such path.
	Bouncers *crowdsec.Feed
}

// Server answers over HTTP; see Routes.
type Server struct {
	config  Config
	checks  *check.Service
	metrics *Metrics
	backlog backlog

	listings atomic.Int64 // those that run or wait
	listing  *semaphore.Weighted
	// Memory of requests' bodies, of the bodies with events, which have a pool of their own, and of long answers.
	bodies, events, answers *inflight.Pool
	appending               *semaphore.Weighted // bytes of bodies whose events are decoded and appended
}

// Bounds of what is under way in a process, in bytes. An event takes up to a hundred times the memory of its line
// while it is appended, so appendedBytes is the lowest.
const (
	bodiesMemory  = 16 << 20
	eventsMemory  = 32 << 20
	answersMemory = 32 << 20
	appendedBytes = 1 << 20
)

// NewServer checks the configuration.
func NewServer(c Config) (*Server, error) {
	if c.Checks == nil || c.Log == nil || c.Metrics == nil {
		return nil, errors.New("httpapi: Checks, Log and Metrics are required")
	}
	if c.MaxBacklog > 0 && (c.Backlogs == nil || c.Keys == nil) {
		return nil, errors.New("httpapi: MaxBacklog needs Backlogs and Keys")
	}
	c.AppendTimeout = cmp.Or(c.AppendTimeout, 5*time.Second)
	c.BacklogTimeout = cmp.Or(c.BacklogTimeout, 250*time.Millisecond)
	return &Server{config: c, checks: c.Checks, metrics: c.Metrics, backlog: backlog{measure: c.Backlogs},
		listing: semaphore.NewWeighted(listingsAtOnce), appending: semaphore.NewWeighted(appendedBytes),
		bodies: inflight.NewPool(bodiesMemory), events: inflight.NewPool(eventsMemory),
		answers: inflight.NewPool(answersMemory)}, nil
}

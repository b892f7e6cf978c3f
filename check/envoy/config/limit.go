package config

import (
	"slices"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/streamcounter/streamcounter/windows"
)

// Limit is what a descriptor falls under.
type Limit struct {
	// Key is what it is counted by.
	Key string
	// Plan counts and limits it; nil if Unlimited or DenyAll.
	Plan *windows.Plan
	// Values are the values that its rule counts; nil: none.
	Values map[string]string
	// Name is the user's own (Named), or else the path in dots.
	Name  string
	Named bool
	// Unlimited admits all and counts nothing.
	Unlimited bool
	// DenyAll is a limit of 0: it admits nothing and counts nothing.
	DenyAll bool
	// Shadow evaluates and never denies (shadow_mode).
	Shadow bool
	// Quota counts on above the limit and denies nothing (quota_mode). It is
	// counted by a shadow rule.
	Quota bool
	// Watched counts and reports what is over, and denies nothing: no limit denies.
	Watched bool
	// Metadata is what the answer carries if the limit admits; nil: nothing.
	Metadata *structpb.Struct
	// Labels name it in metrics: the domain, then each descriptor as key or key_value. A limit that a descriptor
	// brings, and a rule, have none.
	Labels []string
	// Detailed labels are made of the values that are asked for. There may be any number of them.
	Detailed bool
	// Replaces names limits that do not apply to a request beside this one.
	Replaces []string

	// PerUnit units in Multiplier times Unit are what the configuration says, for current_limit in the answer; 0 if
	// Unlimited.
	PerUnit    uint32
	Unit       rlsv3.RateLimitResponse_RateLimit_Unit
	Multiplier uint32
}

// Per returns how long the window is; 0 if Unlimited, and for a rule of the rules file.
func (l Limit) Per() time.Duration { return time.Duration(l.Multiplier) * spans[l.Unit] }

// onError is the on_error of all limits: while Redis cannot answer, a call returns an error, and Envoy's own
// failure_mode_deny decides about the request.
const onError = windows.OnErrorDeny

// IsReplacedBy reports whether l does not apply to a request that falls under other too, because other replaces it by
// name. Unlimited limits replace others and are not replaced.
func (l *Limit) IsReplacedBy(other *Limit) bool {
	return l.Named && !l.Unlimited && slices.Contains(other.Replaces, l.Name)
}

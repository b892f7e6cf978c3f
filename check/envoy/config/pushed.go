package config

import (
	"fmt"
	"log/slog"
	"sync"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/reload"
	"github.com/streamcounter/streamcounter/windows"
)

// Pushed are limits that an xDS server sends. There are none before it has sent some.
type Pushed struct {
	*reload.Pushed[*Limits]
	options Options
	log     *slog.Logger
	once    sync.Once
	arrived chan struct{} // closed when the first limits have been taken
}

// NewPushed checks the options. A nil log means silence.
func NewPushed(log *slog.Logger, options Options) (*Pushed, error) {
	none, err := FromResources(nil, options)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Pushed{Pushed: reload.NewPushed("limits", log, none), options: options, log: log,
		arrived: make(chan struct{})}, nil
}

// Take makes limits of resources. taken reports whether they are in force. The error, which Take also logs, says what
// is not in force: some limits that cannot be counted, or all of them. If it is all of them, the limits before stay
// in force.
func (p *Pushed) Take(resources []*rlsconf.RateLimitConfig) (taken bool, err error) {
	err = p.Pushed.Take(func() (*Limits, error) { return FromResources(resources, p.options) },
		"resources", len(resources))
	if err != nil {
		return false, err
	}
	for _, warning := range p.Limits().Warnings() {
		p.log.Warn(warning)
	}
	p.once.Do(func() { close(p.arrived) })
	if err = p.Limits().Refused(); err != nil {
		p.log.Error("some limits are refused, the others are in force", "error", err)
	}
	return true, err
}

// Refuse logs that what was sent cannot be read, and reports it to the hooks. The limits before stay in force.
func (p *Pushed) Refuse(err error) error {
	return p.Pushed.Take(func() (*Limits, error) { return nil, err })
}

// Refused returns what of the last resources is not in force; nil: all of it is.
func (p *Pushed) Refused() error {
	if err := p.Pushed.Refused(); err != nil {
		return err
	}
	return p.Limits().Refused()
}

// Limits returns the current limits.
func (p *Pushed) Limits() *Limits { return p.Value() }

// Rules returns the rules of the limits.
func (p *Pushed) Rules() *windows.Rules { return p.Limits().rules }

// Arrived is closed when limits have been taken for the first time.
func (p *Pushed) Arrived() <-chan struct{} { return p.arrived }

// Ready returns an error as long as no limits have come, because it is not known then what is limited.
func (p *Pushed) Ready() error {
	select {
	case <-p.arrived:
		return nil
	default:
		return ErrNoLimits
	}
}

// ErrNoLimits says that no limits have come yet.
var ErrNoLimits = fmt.Errorf("no limits yet: %w", api.ErrUnavailable)

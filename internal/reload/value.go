package reload

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// value is the present value, and the hooks that are called after attempts to replace it.
type value[T any] struct {
	name    string
	log     *slog.Logger
	present atomic.Pointer[T]

	refused atomic.Pointer[error] // the error of the last attempt; nil: there was no attempt

	mu    sync.Mutex // one attempt at a time, its hooks included
	hooks []func(error)
}

func newValue[T any](name string, log *slog.Logger) value[T] {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return value[T]{name: name, log: log}
}

// Value returns the present value.
func (v *value[T]) Value() T { return *v.present.Load() }

// Refused returns the error of the last attempt: the newest version is not in force. nil: it is in force.
func (v *value[T]) Refused() error {
	if err := v.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// OnReload adds a function to call after each attempt to reload, with nil or the
// error. Calls come one at a time; none may call Reload or OnReload.
func (v *value[T]) OnReload(hook func(error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hooks = append(v.hooks, hook)
}

// report logs an attempt and calls the hooks. The caller holds mu.
func (v *value[T]) report(err error, fields ...any) {
	v.refused.Store(&err)
	if err != nil {
		v.log.Error(v.name+" not reloaded, keeping the previous ones", "error", err)
	} else {
		v.log.Info(v.name+" reloaded", fields...)
	}
	for _, hook := range v.hooks {
		hook(err)
	}
}

// Pushed is a value of type T that a server sends repeatedly.
type Pushed[T any] struct{ value[T] }

// NewPushed starts with a first value. name names it in the log; a nil log means that nothing is logged.
func NewPushed[T any](name string, log *slog.Logger, first T) *Pushed[T] {
	p := &Pushed[T]{newValue[T](name, log)}
	p.present.Store(&first)
	return p
}

// Take makes the value from what the server sent. On an error, which it also logs, the present value stays. fields
// describe what was sent, for the log.
func (p *Pushed[T]) Take(parse func() (T, error), fields ...any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, err := parse()
	if err == nil {
		p.present.Store(&v)
	}
	p.report(err, fields...)
	return err
}

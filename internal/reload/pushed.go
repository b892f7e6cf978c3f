package reload

import "log/slog"

// Pushed is a value of type T that a server sends, again and again.
type Pushed[T any] struct{ value[T] }

// NewPushed begins with a first value. name says in the log what it is; a nil log
// means silence.
func NewPushed[T any](name string, log *slog.Logger, first T) *Pushed[T] {
	p := &Pushed[T]{newValue[T](name, log)}
	p.present.Store(&first)
	return p
}

// Take makes the value of what was sent. On an error, which it also logs, the present
// value stays. fields describe what was sent, for the log.
func (p *Pushed[T]) Take(parse func() (T, error), fields ...any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, err := parse()
	if err == nil {
		p.present.Store(&v)
	}
	p.tell(err, fields...)
	return err
}

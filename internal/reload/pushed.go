package reload

import "log/slog"

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
	p.tell(err, fields...)
	return err
}

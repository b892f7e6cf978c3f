package transport

import (
	"errors"
	"fmt"

	"github.com/streamcounter/streamcounter/api"
)

// problem is an error that the server named.
type problem struct {
	sentinel error
	detail   string
}

func (p *problem) Error() string {
	if p.detail == "" {
		return p.sentinel.Error()
	}
	return p.detail // the server's details begin with the sentinel's text
}

func (p *problem) Unwrap() error { return p.sentinel }

// Named returns the error of a problem's type. If the server does not know the outcome either, the error wraps
// api.ErrNoAnswer too.
func Named(typ, detail string) error {
	sentinel := api.ErrorNamed(typ)
	if sentinel == nil {
		return Lost(fmt.Errorf("an error that this version does not know, %s: %s", api.Shorten(typ), detail))
	}
	if errors.Is(sentinel, api.ErrOutcomeUnknown) {
		return Lost(&problem{sentinel, detail})
	}
	return &problem{sentinel, detail}
}

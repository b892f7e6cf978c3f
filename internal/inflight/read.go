package inflight

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// A buffer begins with firstBuffer bytes, or with the declared length up to largestBuffer. It grows by doubling, but
// not beyond the declared length.
const (
	firstBuffer   = 512
	largestBuffer = 64 << 10
)

// past is a deadline that ends a read or a write at once.
var past = time.Unix(1, 0)

// Read reads the body of a request, of at most most bytes. The memory is held until free is called, which is
// never nil. The error is http.MaxBytesError, ErrFull, ErrSlow, ErrLate, or that of reading.
func (p *Pool) Read(w http.ResponseWriter, r *http.Request, most int64) (body []byte, free func(), err error) {
	control := http.NewResponseController(w)
	f := p.begin(func() { _ = control.SetReadDeadline(past) }) // what cannot be interrupted ends by its own timeout
	free = func() { p.free(f) }
	from := http.MaxBytesReader(w, r.Body, most)
	size := int64(firstBuffer)
	if r.ContentLength >= 0 { // one more byte than declared, so that the end is seen without growing
		size = min(r.ContentLength+1, largestBuffer)
	}
	for {
		if int64(len(body)) == int64(cap(body)) {
			if err = p.take(r.Context(), f, size-int64(cap(body))); err != nil {
				break
			}
			body = append(make([]byte, 0, size), body...)
			size = min(2*size, most+1)
			if r.ContentLength >= 0 {
				size = min(size, r.ContentLength+1)
			}
		}
		var n int
		n, err = from.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err != nil {
			break
		}
	}
	switch done := p.peerDone(f); {
	case errors.Is(err, io.EOF):
		return body, free, nil
	case !done:
		err = ErrSlow
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = ErrLate
	}
	return nil, free, err
}

// Write writes an answer, whose header is already set, and holds its memory until the peer has taken it. It has
// written nothing if the error is ErrFull or the request's context has ended.
func (p *Pool) Write(w http.ResponseWriter, r *http.Request, answer []byte) error {
	control := http.NewResponseController(w)
	f := p.begin(func() { _ = control.SetWriteDeadline(past) })
	defer p.free(f)
	if err := p.take(r.Context(), f, min(int64(len(answer)), p.most)); err != nil {
		return err
	}
	_, err := w.Write(answer)
	if !p.peerDone(f) {
		return fmt.Errorf("%w: %w", ErrSlow, err)
	}
	return err
}

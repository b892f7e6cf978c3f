package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/inflight"
)

// readJSON decodes one JSON object strictly; the error names the place.
func (s *Server) readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	body, free, err := s.readBody(w, r, s.bodies, maxCheckBody)
	defer free()
	if err != nil {
		return err
	}
	if err := unambiguous(body, requestFields); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return badJSON(err, body)
	}
	end := dec.InputOffset()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one JSON value, from byte %d on", api.ErrBadRequest, end)
	}
	return nil
}

// badJSON adds the place to an error of the decoder, if the error has one.
func badJSON(err error, body []byte) error {
	var syntax *json.SyntaxError
	var value *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%w: at byte %d: %w", api.ErrBadRequest, syntax.Offset, err)
	case errors.As(err, &value):
		return fmt.Errorf("%w: at byte %d: %s is %s, expected %s", api.ErrBadRequest, value.Offset,
			cmp.Or(fieldOf(value, body), "the value"), withArticle(value.Value), expectedJSON(value.Type.Kind()))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: at byte %d: the JSON ends too early", api.ErrBadRequest, len(body))
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		at := bytes.Index(body, []byte(field)) + 1
		return fmt.Errorf("%w: at byte %d: unknown field %s", api.ErrBadRequest, at, field)
	}
	return fmt.Errorf("%w: %w", api.ErrBadRequest, err)
}

// fieldOf returns the path of the field of an error. The decoder leaves out the name of one of the values.
func fieldOf(err *json.UnmarshalTypeError, body []byte) string {
	if err.Type.Kind() != reflect.String || err.Field != "values" && !strings.HasSuffix(err.Field, ".values") {
		return err.Field
	}
	dec, name := json.NewDecoder(bytes.NewReader(body)), json.Token(nil)
	for {
		token, end := dec.Token()
		if end != nil || dec.InputOffset() >= err.Offset {
			return fmt.Sprint(err.Field, ".", name)
		}
		name = token
	}
}

// readBody reads a body of up to most bytes. A compressed body is refused: it would have to be bounded twice, and
// nobody needs it, because events are appended by the megabyte at most. The memory of the body is held until free is
// called.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, from *inflight.Pool, most int64) (body []byte,
	free func(), err error) {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil, func() {}, fmt.Errorf("%w: Content-Encoding is %s, expected none", errEncoding, api.Shorten(coding))
	}
	body, free, err = from.Read(w, r, most)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		err = fmt.Errorf("%w: over %d bytes", api.ErrBodyTooLarge, most)
	case errors.Is(err, inflight.ErrFull), errors.Is(err, inflight.ErrSlow):
		err = s.busy(busyMemory, err.Error())
	case errors.Is(err, inflight.ErrLate):
		err = errLate
	case err != nil:
		err = fmt.Errorf("%w: reading the body: %w", api.ErrBadRequest, err)
	}
	return body, free, err
}

// busy counts a request that is refused because too much is under way, and returns its error.
func (s *Server) busy(reason, text string) error {
	s.metrics.busy.WithLabelValues(reason).Inc()
	return busyError(text)
}

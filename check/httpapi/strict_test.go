package httpapi_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/check/httpapi"
)

// Another parser may read differently a text that encoding/json accepts silently.
func TestEventsAreReadExactly(t *testing.T) {
	for text, want := range map[string]int64{
		`{"key":"a","count":3}`: 3, `{"key":"a","count":1e2}`: 0, `{"key":"a","count":3.0}`: 0,
		`{"key":"a","KIND":null,"more":1}`: 1, `{"key":"a"}`: 1,
		`{"key":"a","count":"3"}`: 0, `{"key":"a","count":null}`: 0, `{"key":"a","count":1.5}`: 0,
		`{"key":"a","count":1e300}`: 0, `{"KEY":"a"}`: 0, `{"key":"a","Count":5}`: 0,
		`{"key":"a","key":"b"}`: 0, `{"key":"a","count":1,"count":2}`: 0, `{"key":null}`: 0, `{"key":5}`: 0,
		`{"key":"a","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`: 0,
	} {
		e, err := httpapi.DecodeEvent([]byte(text))
		if want > 0 && (err != nil || e.Count != want) || want == 0 && err == nil {
			t.Errorf("%s: %+v, %v", text, e, err)
		}
		if err != nil && (strings.Contains(err.Error(), "Go ") || strings.Contains(err.Error(), "httpapi")) {
			t.Errorf("%s: the error names Go's types: %v", text, err)
		}
		if err != nil && !errors.Is(err, api.ErrBadRequest) && !errors.Is(err, api.ErrBadCount) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/crowdsec"
	"github.com/streamcounter/streamcounter/internal/testkit"
)

// bodies: schema of openapi.json → the Go type that is encoded or decoded there.
var bodies = map[string]any{
	"Window": api.WindowState{}, "CheckAnswer": api.CheckAnswer{}, "ChecksAnswer": api.ChecksAnswer{},
	"ShadowAnswer": api.ShadowAnswer{}, "ShadowState": api.ShadowState{}, "KeyState": api.KeyState{},
	"FieldValues": api.FieldValues{}, "SeenValue": api.SeenValue{},
	"Problem": api.Problem{}, "Denial": denial{}, "Denials": denials{}, "EachAnswer": eachAnswer{},
	"EachError": eachError{}, "EventsAnswer": eventsAnswer{}, "Rejected": rejected{}, "EventsProblem": eventsProblem{},
	"ResetAnswer": resetAnswer{}, "Throttled": throttledAnswer{}, "ThrottledKey": api.Throttled{},
	"Status": statusAnswer{}, "Event": api.Event{}, "CheckRequest": checkBody{},
	"Overrides": api.Overrides{}, "Override": api.Override{}, "SetOverride": overrideBody{}, "Cleared": clearedAnswer{},
	"History": api.History{}, "OverrideWindow": api.OverrideWindow{}, "OverrideChange": api.OverrideChange{},
	"HistoryEntry": api.HistoryEntry{}, "Transition": api.Transition{}, "Top": api.Top{}, "TopKeys": api.TopKeys{},
	"TopKey": api.TopKey{}, "Penalty": api.Penalty{}, "OverrideSet": api.OverrideSet{}, "Covered": api.Covered{},
	"Reserved": api.Reserved{}, "Reservation": api.Reservation{}, "ReservationOfAll": api.ReservationOfAll{},
	"Settlement": api.Settlement{}, "ReservationRequest": reservationBody{}, "CommitRequest": api.CommitRequest{},
	"CommitCost": api.CommitCost{}, "RenewRequest": api.RenewRequest{}, "Decision": crowdsec.Decision{},
	"DecisionChanges": crowdsec.Changes{}, "LeaseRequest": api.LeaseRequest{}, "LeaseAnswer": api.LeaseAnswer{},
}

// optionalInRequests are fields that a caller may leave out though Go always writes
// them: the reader puts a default in their place.
var optionalInRequests = map[string]bool{"Event.count": true}

// schema is what the comparison looks at.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	AllOf      []schema          `json:"allOf"`
	OneOf      []schema          `json:"oneOf"`
}

// field is one field of a body: what it holds, and whether it is always there.
type field struct {
	holds    string // a JSON type; "[]" before it for a list, the schema's name for an object
	required bool
}

// Each schema has the fields of its Go type and no others, of the same types, and
// requires those that are always there. What api's client sends is in it too.
func TestOpenAPIHasTheFieldsOfTheGoTypes(t *testing.T) {
	var doc struct {
		Components struct{ Schemas map[string]schema }
	}
	testkit.Must(t, json.Unmarshal(OpenAPI, &doc))
	d := document(doc.Components.Schemas)
	for name, s := range d {
		v, ok := bodies[name]
		if !ok {
			if name != "OneCheck" && name != "AnyCheck" && name != "ManyChecks" { // parts of CheckRequest
				t.Errorf("the schema %s is compared with no Go type", name)
			}
			continue
		}
		compare(t, name, d.fields(s), fieldsOf(reflect.TypeOf(v), name))
	}
	for name := range bodies {
		if _, ok := d[name]; !ok {
			t.Errorf("openapi.json has no schema %s", name)
		}
	}
	body := fieldsOf(reflect.TypeOf(checkBody{}), "CheckRequest")
	for name, sent := range fieldsOf(reflect.TypeOf(api.CheckRequest{}), "CheckRequest") {
		if body[name] != sent {
			t.Errorf("a client sends %s, %v; the server reads %v", name, sent, body[name])
		}
	}
}

// encoding/json ignores the letter case of each field that it decodes, so each must be one whose spelling is checked.
func TestTheSpellingOfAllFieldsIsChecked(t *testing.T) {
	for _, body := range []any{checkBody{}, reservationBody{}, overrideBody{}, api.OverrideWindow{}, api.Event{},
		api.CommitRequest{}, api.CommitCost{}, api.RenewRequest{}, api.LeaseRequest{}} {
		for name := range fieldsOf(reflect.TypeOf(body), "") {
			if !slices.Contains(requestFields, name) {
				t.Errorf("%s of %T is not in requestFields", name, body)
			}
		}
	}
}

func compare(t *testing.T, name string, doc, code map[string]field) {
	t.Helper()
	all := maps.Clone(doc)
	maps.Copy(all, code)
	for _, f := range slices.Sorted(maps.Keys(all)) {
		in, has := doc[f]
		is, exists := code[f]
		switch {
		case !has:
			t.Errorf("%s.%s is not in openapi.json", name, f)
		case !exists:
			t.Errorf("%s.%s is in openapi.json and in no Go type", name, f)
		case in != is:
			t.Errorf("%s.%s is %+v in openapi.json, %+v in Go", name, f, in, is)
		}
	}
}

type document map[string]schema

// fields returns the fields of a schema, with all parts that it is made of. If a body is one of several kinds, a
// field that only one kind requires is not required.
func (d document) fields(s schema) map[string]field {
	out := map[string]field{}
	if s.Ref != "" {
		return d.fields(d[nameOf(s.Ref)])
	}
	for _, part := range s.AllOf {
		maps.Copy(out, d.fields(part))
	}
	for _, kind := range s.OneOf {
		for name, f := range d.fields(kind) {
			f.required = false
			out[name] = f
		}
	}
	for name, p := range s.Properties {
		out[name] = field{d.holds(p), slices.Contains(s.Required, name)}
	}
	return out
}

func (d document) holds(s schema) string {
	switch {
	case s.Ref == "#/components/schemas/OneCheck", s.Ref == "#/components/schemas/AnyCheck":
		return "CheckRequest"
	case s.Ref != "":
		return nameOf(s.Ref)
	case s.Items != nil:
		return "[]" + d.holds(*s.Items)
	case len(s.OneOf) > 0:
		return "any"
	}
	return s.Type
}

func nameOf(ref string) string { return strings.TrimPrefix(ref, "#/components/schemas/") }

// fieldsOf returns the fields that encoding/json makes of a struct, including embedded structs.
func fieldsOf(t reflect.Type, name string) map[string]field {
	out := map[string]field{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			maps.Copy(out, fieldsOf(f.Type, name))
		case tag != "-":
			missing := strings.Contains(options, "omit") || optionalInRequests[name+"."+tag] ||
				name == "CheckRequest" || name == "ReservationRequest"
			out[tag] = field{holdsOf(f.Type), !missing}
		}
	}
	return out
}

func holdsOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return holdsOf(t.Elem())
	case reflect.Slice:
		return "[]" + holdsOf(t.Elem())
	case reflect.Map:
		return "object"
	case reflect.Interface:
		return "any"
	case reflect.Struct:
		if t == reflect.TypeFor[api.CheckRequest]() {
			return "CheckRequest"
		}
		for name, v := range bodies {
			if reflect.TypeOf(v) == t {
				return name
			}
		}
		return "a struct that is no schema: " + t.String()
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	}
	return fmt.Sprint(t)
}

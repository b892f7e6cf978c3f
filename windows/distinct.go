package windows

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
)

// MaxDistinct is the largest limit of a window that counts values. Redis keeps up to limit + 1 values per key.
const MaxDistinct = 100_000

// MaxPublished is the largest number of values in a transition.
const MaxPublished = 100

// Normalize says which spellings count as the same value.
type Normalize struct {
	Lower bool `json:",omitempty"` // those in upper and lower case
	Trim  bool `json:",omitempty"` // those with and without white space around them
}

// distinctFields returns the fields of a window that counts values.
func distinctFields(d *document.Document, w *Window) []document.Field {
	return []document.Field{
		{Name: "distinct", Set: given(d, &w.Distinct, document.Text,
			`distinct "": want the name of a field, such as user`)},
		{Name: "normalize", Set: d.List(document.Leaf(d, &w.Normalize, func(n *document.Node) (Normalize, error) {
			return w.Normalize.and(n)
		}))},
		{Name: "hash", Set: document.Leaf(d, &w.Hash, func(n *document.Node) (HashKey, error) {
			on, err := document.Truth(n)
			if on {
				return unread, err
			}
			return "", err
		})},
		{Name: "value_from", Set: given(d, &w.ValueFrom, document.Text,
			`value_from "": want the name of a descriptor entry, such as user`)},
		{Name: "publish_values", Set: given(d, &w.PublishValues, func(n *document.Node) (int, error) {
			count, err := document.Whole(1, MaxPublished)(n)
			return int(count), err
		}, fmt.Sprintf("publish_values 0: want a whole number from 1 to %d", MaxPublished))},
	}
}

// and returns n with one more word of a rules file.
func (n Normalize) and(word *document.Node) (Normalize, error) {
	switch {
	case document.IsText(word) && word.Value == "lower":
		n.Lower = true
	case document.IsText(word) && word.Value == "trim":
		n.Trim = true
	default:
		return n, errors.New("lower or trim")
	}
	return n, nil
}

// String returns the words of a rules file, joined by commas.
func (n Normalize) String() string {
	var words []string
	if n.Lower {
		words = append(words, "lower")
	}
	if n.Trim {
		words = append(words, "trim")
	}
	return strings.Join(words, ",")
}

// valueOf is the field whose different values a meter counts, and how they are converted.
type valueOf struct {
	field     string
	normalize Normalize
	key       HashKey
}

// valueOf returns the field whose different values the window counts.
func (w Window) valueOf() valueOf { return valueOf{w.Distinct, w.Normalize, w.Hash} }

// CanCount reports whether the window, which is Distinct, can count the value.
func (w Window) CanCount(value string) bool {
	_, err := w.valueOf().convert(value)
	return err == nil
}

// form returns the part of the names of keys in Redis that identifies the meter.
func (v valueOf) form() string {
	form := "distinct-" + v.field
	if words := v.normalize.String(); words != "" {
		form += "," + words
	}
	if !v.key.IsZero() {
		form += "," + v.key.String()
	}
	return form
}

// convert returns the text of a value as it is counted: normalized and hashed.
func (v valueOf) convert(text string) (string, error) {
	if !utf8.ValidString(text) { // ToLower would make it valid
		return text, api.ValidateValue(v.field, text)
	}
	if v.normalize.Trim {
		text = strings.TrimSpace(text)
	}
	if v.normalize.Lower {
		text = strings.ToLower(text)
	}
	err := api.ValidateValue(v.field, text)
	if err == nil && !v.key.IsZero() {
		text = v.key.hash(text)
	}
	return text, err
}

// HasValues reports whether the plan counts values.
func (p *Plan) HasValues() bool { return p != nil && len(p.values) > 0 }

// Values returns the values of a check or an event that the plan counts: one per meter. If a value is missing or
// cannot be counted, and the rule that decides needs it, the error wraps api.ErrBadValue. If only a shadow rule
// needs the value, that rule counts nothing.
func (p *Plan) Values(field func(name string) string) (list []string, err error) {
	if !p.HasValues() {
		return nil, nil
	}
	list = make([]string, len(p.values))
	for i, m := range p.values {
		v := m.value
		needed := p.Live != nil && p.Live.counts(v.field)
		text := field(v.field)
		if text == "" && !needed {
			continue
		}
		value, bad := v.convert(text)
		switch {
		case bad == nil:
			list[i] = value
		case needed && text == "":
			return list, fmt.Errorf("%w: the rule %q counts different values of %q, and there is none", api.ErrBadValue,
				p.Live.Name, v.field)
		case needed:
			return list, bad
		}
	}
	return list, nil
}

// counts reports whether a window of the rule counts the values of a field.
func (r *Rule) counts(field string) bool {
	return slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Distinct == field })
}

// ValueMeter is a meter that counts values.
type ValueMeter struct {
	Form, Field string
	Hashed      bool
	WindowMs    int64 // the longest of its windows
}

// ValueMeters returns the meters of the plan that count values.
func (p *Plan) ValueMeters() (list []ValueMeter) {
	for _, m := range p.values {
		list = append(list, ValueMeter{m.form, m.value.field, !m.value.key.IsZero(), m.windowMs})
	}
	return list
}

var fieldForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

func (r *Rule) validateDistinct(i int) *fault {
	w := r.Windows[i]
	at := func(field string) string { return fmt.Sprintf("windows[%d].%s", i, field) }
	if w.Distinct == "" {
		switch {
		case w.Normalize != (Normalize{}):
			return faultf(at("normalize"), "normalize: only with distinct")
		case w.PublishValues != 0:
			return faultf(at("publish_values"), "publish_values %d: only with distinct", w.PublishValues)
		case w.ValueFrom != "":
			return faultf(at("value_from"), "value_from %q: only with distinct", w.ValueFrom)
		case !w.Hash.IsZero():
			return faultf(at("hash"), "hash: only with distinct")
		}
		return nil
	}
	switch {
	case !fieldForm.MatchString(w.Distinct):
		return faultf(at("distinct"), "distinct %q: want the name of a field, 1 to 64 of a-z, A-Z, 0-9, _, . and -",
			w.Distinct)
	case api.IsEventField(w.Distinct):
		return faultf(at("distinct"), "distinct %q: every event has this field for something else; want another name",
			w.Distinct)
	case w.InFlight || w.inPeriods():
		return faultf(at("distinct"), "distinct %q: want a sliding window, such as per: 10m", w.Distinct)
	case w.Algorithm != "":
		return faultf(at("algorithm"), "algorithm %q: not allowed beside distinct, which counts values exactly",
			w.Algorithm)
	case w.Limit > MaxDistinct:
		return faultf(at("limit"), "limit %d: want at most %d beside distinct", w.Limit, MaxDistinct)
	case w.PublishValues < 0 || w.PublishValues > MaxPublished:
		return faultf(at("publish_values"), "publish_values %d: want a whole number from 1 to %d", w.PublishValues,
			MaxPublished)
	case w.PublishValues > 0 && r.Shadow:
		return faultf(at("publish_values"), "publish_values %d: not allowed in a shadow rule", w.PublishValues)
	case r.InFlight() > 0:
		return faultf(at("distinct"), "distinct %q beside in_flight: a reservation has no values; want two rules",
			w.Distinct)
	}
	for j, other := range r.Windows[:i] {
		if other.Distinct != w.Distinct {
			continue
		}
		var differs string
		switch {
		case other.Normalize != w.Normalize:
			differs = "normalize"
		case other.Hash != w.Hash:
			differs = "hash"
		case other.ValueFrom != w.ValueFrom:
			differs = "value_from"
		default:
			continue
		}
		return &fault{at("distinct"), fmt.Sprintf("windows[%d].distinct", j),
			fmt.Sprintf("%s: want the same in all windows of %q", differs, w.Distinct)}
	}
	return nil
}

// CheckValues returns the error of an event that cannot be counted because of its values; see Plan.Values.
func (r *Rules) CheckValues(key string, field func(name string) string) error {
	if !r.values {
		return nil
	}
	_, err := r.Match(key).Values(field)
	return err
}

package windows

import (
	"cmp"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/document"
	"github.com/streamcounter/streamcounter/internal/english"
	"github.com/streamcounter/streamcounter/lua"
)

// option is one entry of the table below: a field of a rule, or a few fields that belong together. The decoder, the
// defaults, the validation, the sentence about a rule, `rules diff` and the table of docs/rules.md read this entry.
// So a new option needs its field in Rule, a line in options, and the code that obeys it.
type option struct {
	fields   []optionField
	defaults func(r *Rule)        // sets zero fields to their default; nil: zero is the default
	validate func(r *Rule) *fault // returns the first fault; nil: every value is valid
	// state is the setting in words. Two rules behave alike if, and only if, their words are equal. nil: the sentence
	// about the windows contains the setting.
	state       func(r *Rule) string
	says        func(r *Rule) bool   // reports whether the sentence about the rule contains state
	follows     func(r *Rule) string // the effect of a change to r, in words; nil: none
	notReplayed func(r *Rule) string // what a replay of a log leaves out, in words; nil, or empty: nothing
	// An option can add a meter to those of the windows. algorithm counts it, has reports whether a rule adds it, and
	// configure adds its settings to the plan for the library.
	algorithm string
	has       func(r *Rule) bool
	configure func(r *Rule, m *lua.Meter)
	inForce   func(r *Rule, values []int64) api.InForce // converts the integers that its meter adds; nil: it adds none
}

// optionField is one field of a rules file. Its texts are for the docs.
type optionField struct {
	name, form, def, meaning string
	set                      func(d *document.Document, r *Rule) document.Setter
}

// options is the table, in the order of sentences and docs.
var options = []option{bucketsOption, alertsOption, holdOption, shadowOption, penaltyOption, onDenyOption,
	onExpireOption, leaseOption, onErrorOption}

// optionFields returns the fields of all options, which decode into r.
func optionFields(d *document.Document, r *Rule) (list []document.Field) {
	for _, o := range options {
		for _, f := range o.fields {
			list = append(list, document.Field{Name: f.name, Set: f.set(d, r)})
		}
	}
	return list
}

// meterOptions returns the options that add a meter to the rule.
func (r *Rule) meterOptions() (list []option) {
	for _, o := range options {
		if o.has != nil && o.has(r) {
			list = append(list, o)
		}
	}
	return list
}

// inForce converts the integers that the library adds to the state of a key under the rule.
func (r *Rule) inForce(values []int64) (f api.InForce) {
	if len(values) == 0 {
		return f
	}
	for _, o := range r.meterOptions() {
		if o.inForce != nil {
			return o.inForce(r, values)
		}
	}
	return f
}

// Says returns the parts of the sentence about the rule that come from its options. It leaves out defaults that
// change nothing.
func (r *Rule) Says() (list []string) {
	for _, o := range options {
		if o.state != nil && o.says(r) {
			list = append(list, o.state(r))
		}
	}
	return list
}

// NotReplayed returns the parts of the rule that a replay of a log leaves out or counts otherwise, in words.
func (r *Rule) NotReplayed() (list []string) {
	for _, a := range r.Algorithms() {
		if slices.Contains(Algorithms, a) && !lua.IsExact(a) {
			list = append(list, "by "+a+", but exactly in windows that slide")
		}
	}
	for _, o := range options {
		if o.notReplayed == nil {
			continue
		}
		if text := o.notReplayed(r); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// OptionChange is an option that differs between two rules.
type OptionChange struct{ Is, Was, Follows string }

// OptionChanges returns the options that differ from those of the rule before.
func (r *Rule) OptionChanges(before *Rule) (list []OptionChange) {
	for _, o := range options {
		if o.state == nil || o.state(r) == o.state(before) {
			continue
		}
		c := OptionChange{Is: o.state(r), Was: o.state(before)}
		if o.follows != nil {
			c.Follows = o.follows(r)
		}
		list = append(list, c)
	}
	return list
}

// with returns the option with these words.
func (o option) with(state func(r *Rule) string, says func(r *Rule) bool) option {
	o.state, o.says = state, says
	return o
}

// choice is an option whose value is one of a few words, the default first.
func choice[T ~string](name, meaning string, of func(r *Rule) *T, words ...T) option {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = string(word)
	}
	want := english.List(quoted, "or")
	form := "`" + strings.NewReplacer(", ", "`, `", " or ", "` or `").Replace(want) + "`"
	return option{
		fields: []optionField{{name, form, "`" + quoted[0] + "`", meaning,
			func(d *document.Document, r *Rule) document.Setter {
				return document.Leaf(d, of(r), func(n *document.Node) (T, error) {
					text, err := document.Text(n)
					return T(text), err
				})
			}}},
		defaults: func(r *Rule) { *of(r) = cmp.Or(*of(r), words[0]) },
		validate: func(r *Rule) *fault {
			if slices.Contains(words, *of(r)) {
				return nil
			}
			return faultf(name, "%s %q: want %s", name, *of(r), want)
		},
	}
}

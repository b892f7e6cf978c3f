package windows

import "github.com/streamcounter/streamcounter/internal/document"

var shadowOption = option{
	fields: []optionField{{"shadow", "`true` or `false`", "`false`",
		"`true`: evaluate and publish, never deny. See [Shadow rules](#shadow-rules)",
		func(d *document.Document, r *Rule) document.Setter {
			return document.Leaf(d, &r.Shadow, document.Truth)
		}}},
	validate: (*Rule).validateTier,
	state: func(r *Rule) string {
		switch {
		case r.Shadow && r.Exclusive:
			return "a shadow, which never denies and takes its keys from other rules"
		case r.Shadow:
			return "a shadow, which counts beside the rule that decides and never denies"
		}
		return "decides"
	},
	says: func(r *Rule) bool { return r.Shadow },
	follows: func(r *Rule) string {
		if r.Shadow {
			return "its keys are decided by the next rule that matches; without one they are allowed"
		}
		return "checks are denied by it, and the rules below it no longer decide its keys"
	},
}

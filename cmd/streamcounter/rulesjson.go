package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/windows"
)

// ruleFields is a rule in the words of a rules file, with all defaults. Fields that mean nothing for the rule are left
// out, such as on_error for slots in flight.
type ruleFields struct {
	Name      string           `json:"name"`
	Match     string           `json:"match,omitempty"` // none: a tier
	Algorithm string           `json:"algorithm"`
	Buckets   int64            `json:"buckets,omitempty"`
	Windows   []windowFields   `json:"windows"`
	Alerts    []string         `json:"alerts"`
	Hold      string           `json:"hold"`
	Penalty   []string         `json:"penalty,omitempty"`
	Forget    string           `json:"forget,omitempty"`
	Lease     string           `json:"lease,omitempty"`
	OnDeny    windows.OnDeny   `json:"on_deny,omitempty"`
	OnExpire  windows.OnExpire `json:"on_expire,omitempty"`
	OnError   windows.OnError  `json:"on_error,omitempty"`
	Shadow    bool             `json:"shadow"`
}

type windowFields struct {
	Limit         int64    `json:"limit"`
	Per           string   `json:"per,omitempty"`
	Zone          string   `json:"zone,omitempty"`
	Starts        string   `json:"starts,omitempty"`
	InFlight      string   `json:"in_flight,omitempty"`
	Algorithm     string   `json:"algorithm,omitempty"`
	Distinct      string   `json:"distinct,omitempty"`
	Normalize     []string `json:"normalize,omitempty"`
	Hash          bool     `json:"hash,omitempty"`
	ValueFrom     string   `json:"value_from,omitempty"`
	PublishValues int      `json:"publish_values,omitempty"`
}

func fieldsOf(list []*windows.Rule) []ruleFields {
	all := make([]ruleFields, len(list))
	for i, r := range list {
		f := ruleFields{Name: r.Name, Match: r.Match, Algorithm: r.Algorithm, Buckets: r.Buckets, Alerts: []string{},
			Hold: windows.FormatDuration(r.Hold), Forget: unlessZero(r.Forget), Lease: unlessZero(r.Lease),
			Shadow: r.Shadow}
		for _, w := range r.Windows {
			f.Windows = append(f.Windows, windowFieldsOf(w))
		}
		for _, percent := range r.Alerts {
			f.Alerts = append(f.Alerts, strconv.Itoa(percent)+"%")
		}
		for _, step := range r.Penalty {
			f.Penalty = append(f.Penalty, windows.FormatDuration(step))
		}
		if !r.Shadow {
			f.OnExpire = r.OnExpire
			if r.Charges() {
				f.OnDeny = r.OnDeny
			}
			if r.InFlight() == 0 {
				f.OnError = r.OnError
			}
		}
		all[i] = f
	}
	return all
}

func windowFieldsOf(w windows.Window) windowFields {
	f := windowFields{Limit: w.Limit, Algorithm: w.Algorithm, Distinct: w.Distinct, Hash: !w.Hash.IsZero(),
		ValueFrom: w.ValueFrom, PublishValues: w.PublishValues}
	f.Per, f.Zone, f.Starts = w.PerFields()
	if w.InFlight {
		f.Per, f.InFlight = "", f.Per
	}
	if words := w.Normalize.String(); words != "" {
		f.Normalize = strings.Split(words, ",")
	}
	return f
}

func unlessZero(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return windows.FormatDuration(d)
}

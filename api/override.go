package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// OverrideRule is the rule that the throttle decision of a blocked key names: it stands by
// itself beside the decision of the rule that matches the key, and also where none does.
// Its subject is <prefix>.throttle.override.<key>. No rule can have this name.
const OverrideRule = "override"

// Override is what an operator has set for one key, or for all keys that fit a pattern, until
// a time. It has one of Block, Exempt, Rule and Windows.
type Override struct {
	// Key or Pattern; see ParseTarget.
	Key     string `json:"key,omitempty"`
	Pattern string `json:"pattern,omitempty"`

	// Block denies every check, which charges nothing. Events count under the rule as ever.
	Block bool `json:"block,omitempty"`
	// Exempt admits every check. What is spent is counted, and no level is raised.
	Exempt bool `json:"exempt,omitempty"`
	// Rule decides in place of the rule that matches: a tier.
	Rule string `json:"rule,omitempty"`
	// Windows stand in place of those of the rule that matches; the count stays.
	Windows []OverrideWindow `json:"windows,omitempty"`

	// UntilMs is when it ends, in ms since 1970 by Redis's clock; 0: not by itself.
	UntilMs int64  `json:"until_ms,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// By is who set it: the name of the token; empty where the server asks for none.
	By   string `json:"by,omitempty"`
	AtMs int64  `json:"at_ms,omitempty"` // when it was set
}

// OverrideWindow is one window of an override: Limit units per span, which is written as in
// a rules file, for example 1m; or per day, week, month or year of the calendar, with a zone
// and when it starts as there.
type OverrideWindow struct {
	Limit  int64  `json:"limit"`
	Per    string `json:"per"`
	Zone   string `json:"zone,omitempty"`
	Starts string `json:"starts,omitempty"`
}

// Target names what the override is for, as ParseTarget reads it.
func (o Override) Target() string {
	if o.Pattern != "" {
		return o.Pattern
	}
	return TargetOfKey(o.Key)
}

// Kind is block, exempt, rule or windows.
func (o Override) Kind() string {
	switch {
	case o.Block:
		return "block"
	case o.Exempt:
		return "exempt"
	case o.Rule != "":
		return "rule"
	}
	return "windows"
}

// Overrides is a page of a list.
type Overrides struct {
	Overrides []Override `json:"overrides"`
	// Next is the parameter `after` of the next page; empty: there is none.
	Next string `json:"next,omitempty"`
}

// OverrideChange is one change of the override of a key or a pattern.
type OverrideChange struct {
	// By is the token's name; empty: the server asked for none, or nobody did it (Reason is "expired").
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Before *Override `json:"before,omitempty"` // nil: there was none
	After  *Override `json:"after,omitempty"`  // nil: it was removed
}

// HistoryEntry is one thing that happened to a key: a transition or a change of its override.
type HistoryEntry struct {
	AtMs       int64           `json:"at_ms"`
	Transition *Transition     `json:"transition,omitempty"`
	Change     *OverrideChange `json:"change,omitempty"`
}

// History is a page of what happened to one key or pattern, the newest first.
type History struct {
	Key     string         `json:"key,omitempty"`
	Pattern string         `json:"pattern,omitempty"`
	Entries []HistoryEntry `json:"entries"`
	// Next is the parameter `before` of the next page; empty: there is none.
	Next string `json:"next,omitempty"`
	// LeftOut says what the server could not look at, and why.
	LeftOut []string `json:"left_out,omitempty"`
}

// MaxReasonBytes bounds the reason of an override.
const MaxReasonBytes = 256

// ParseTarget reads the name of what an override is for: a pattern where the text has a * or ?, as
// in the match of a rule, else a key. A \ takes the character after it literally, so
// that of the key a*b is a\*b; see TargetOfKey. The error wraps ErrBadKey.
func ParseTarget(text string) (key, pattern string, err error) {
	var b strings.Builder
	wild := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '*', '?':
			wild = true
		case '\\':
			if i++; i == len(text) {
				return "", "", fmt.Errorf(`%w: %s ends with \, expected a character after it`, ErrBadKey, Shorten(text))
			}
		}
		b.WriteByte(text[i])
	}
	if wild {
		if len(text) > MaxKeyBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, Unprintable) {
			return "", "", fmt.Errorf("%w: the pattern %s, expected up to %d bytes of UTF-8 without control characters",
				ErrBadKey, Shorten(text), MaxKeyBytes)
		}
		return "", text, nil
	}
	return b.String(), "", ValidateKey(b.String())
}

var escapes = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`)

// TargetOfKey is the target that means this key alone.
func TargetOfKey(key string) string { return escapes.Replace(key) }

// ValidateReason reports whether a reason may be kept: up to MaxReasonBytes of UTF-8 without control
// characters. The error wraps ErrBadOverride.
func ValidateReason(reason string) error {
	if len(reason) > MaxReasonBytes || !utf8.ValidString(reason) || strings.ContainsFunc(reason, Unprintable) {
		return fmt.Errorf("%w: reason %s, expected at most %d bytes of UTF-8 without control characters",
			ErrBadOverride, Shorten(reason), MaxReasonBytes)
	}
	return nil
}

// ParseOverride reads what Redis holds of an override; nil where that is corrupt or foreign.
func ParseOverride(text string) *Override {
	var o Override
	if json.Unmarshal([]byte(text), &o) != nil {
		return nil
	}
	n := 0
	for _, has := range []bool{o.Block, o.Exempt, o.Rule != "", len(o.Windows) > 0} {
		if has {
			n++
		}
	}
	if n != 1 || o.UntilMs < 0 {
		return nil
	}
	return &o
}

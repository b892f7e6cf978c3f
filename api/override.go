package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// OverrideRule is the rule that is named in the throttle decision of a blocked key. This decision is separate from
// the decision of the rule that matches the key, and exists even if no rule matches. Its subject is
// <prefix>.throttle.override.<key>. No rule can have this name.
const OverrideRule = "override"

// SourceOverride: nobody counted, because an operator has blocked the key.
const SourceOverride Source = "override"

var (
	// ErrBadOverride: an override that cannot be set; the error names the field.
	ErrBadOverride = errors.New("bad override")
	// ErrNoOverride: the key or pattern has no override.
	ErrNoOverride = errors.New("no override")
)

// ByOperator says what kind of override a key has. Answers embed it.
type ByOperator struct {
	// Override is block (Rule is OverrideRule then), exempt, rule or windows; empty: nothing is set. Reason is why.
	Override string `json:"override,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Blocked reports whether an operator has blocked the key.
func (o ByOperator) Blocked() bool { return o.Override == "block" }

// SetByOperator is the override of a key. KeyState embeds it.
type SetByOperator struct {
	Override *Override `json:"override,omitempty"` // nil: nothing is set
}

// IsBlock reports whether an operator has blocked the key: no rule has throttled it.
func (t Throttled) IsBlock() bool { return t.Rule == OverrideRule }

// IsBlock reports whether it is about a key that an operator has blocked: no rule has throttled it.
func (t Transition) IsBlock() bool { return t.Rule == OverrideRule }

// EndUnknown reports whether a block ends later than UntilMs, or never. Such a decision is renewed each day, and
// outlasts UntilMs by an hour.
func (t Transition) EndUnknown() bool {
	return t.IsBlock() && t.ExpiresMs-t.UntilMs >= time.Hour.Milliseconds()
}

// Override is what an operator has set for one key, or for all keys that fit a pattern or are in a network, until
// a time. It has one of Block, Exempt, Rule and Windows.
type Override struct {
	// Key, Pattern or Network; see ParseTarget.
	Key     string `json:"key,omitempty"`
	Pattern string `json:"pattern,omitempty"`
	Network string `json:"network,omitempty"`

	// Block denies every check, which then charges nothing. Events still count under the rule.
	Block bool `json:"block,omitempty"`
	// Exempt admits every check. What is spent is counted, and no level is raised.
	Exempt bool `json:"exempt,omitempty"`
	// Rule decides in place of the rule that matches: a tier.
	Rule string `json:"rule,omitempty"`
	// Windows: each replaces the window of the same length of the rule that matches, or is added to its windows.
	// With Only they replace all of its windows but those that count values. The count stays.
	Windows []OverrideWindow `json:"windows,omitempty"`
	Only    bool             `json:"only,omitempty"`

	// UntilMs is when it ends, in ms since 1970 by Redis's clock; 0: it has no end.
	UntilMs int64  `json:"until_ms,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// By is who set it: the name of the token; empty if the server asks for none.
	By   string `json:"by,omitempty"`
	AtMs int64  `json:"at_ms,omitempty"` // when it was set
}

// OverrideWindow is one window of an override: Limit units per span, which is written as in a rules file, for example
// 1m; or per day, week, month or year, with Zone and Starts as in a rules file. Without both, it begins when the
// window that it replaces begins.
type OverrideWindow struct {
	Limit  int64  `json:"limit"`
	Per    string `json:"per"`
	Zone   string `json:"zone,omitempty"`
	Starts string `json:"starts,omitempty"`
}

// Target returns what the override is for, in the form that ParseTarget reads.
func (o Override) Target() string {
	if several := o.Several(); several != "" {
		return several
	}
	return TargetOfKey(o.Key)
}

// Several returns the pattern or the network that the override is for; empty if it is for a key.
func (o Override) Several() string { return o.Pattern + o.Network }

// SetTarget sets what the override is for, as ParseTarget returns it.
func (o *Override) SetTarget(key, pattern string) {
	o.Key, o.Pattern, o.Network = SplitTarget(key, pattern)
}

// SplitTarget separates networks from patterns, because ParseTarget returns both as a pattern.
func SplitTarget(key, pattern string) (_, _, network string) {
	if _, ok, _ := ParseNetwork(pattern); ok {
		return key, "", pattern
	}
	return key, pattern, ""
}

// Kind returns block, exempt, rule or windows.
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

// OverrideSet is the answer to setting an override: what is set, and its effect.
type OverrideSet struct {
	Override
	OverrideEffect
}

// OverrideEffect is the effect of an override, as far as the override itself does not show it.
type OverrideEffect struct {
	// MatchedRule is the rule whose windows the override changes. Replaces are its windows that are not in effect any
	// more, and Keeps are those that still are, in words. All three are only for an override of one key.
	MatchedRule string   `json:"matched_rule,omitempty"`
	Replaces    []string `json:"replaces,omitempty"`
	Keeps       []string `json:"keeps,omitempty"`
	// Covers is how many keys a pattern or a network has; only in the answer to a dry run (dry_run).
	Covers *Covered `json:"covers,omitempty"`
	// Warnings say what the operator may not have meant.
	Warnings []string `json:"warnings,omitempty"`
}

// Covered is how many keys a pattern or a network has now.
type Covered struct {
	Keys      int64 `json:"keys"`               // with a count, or throttled
	Throttled int64 `json:"throttled"`          // over a limit, or blocked
	AtLeast   bool  `json:"at_least,omitempty"` // there can be more: not all keys could be read in time
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
	Network string         `json:"network,omitempty"`
	Entries []HistoryEntry `json:"entries"`
	// Next is the parameter `before` of the next page; empty: there is none.
	Next string `json:"next,omitempty"`
	// LeftOut says what the server could not read, and why.
	LeftOut []string `json:"left_out,omitempty"`
}

// maxReasonBytes bounds the reason of an override.
const maxReasonBytes = 256

// ParseTarget reads the name of what an override is for. If the text has a * or ?, it is a pattern, as in the match
// of a rule. If the text has a network after a prefix (ip:203.0.113.0/24, see ParseNetwork), it is a network, which
// is returned as a pattern too. Otherwise it is a key. A \ makes the character after it literal, so the target of the
// key a*b is a\*b; see TargetOfKey. The error wraps ErrBadKey.
func ParseTarget(text string) (key, pattern string, err error) {
	plain, wild, _, err := unescape(text)
	if err != nil {
		return "", "", err
	}
	if wild {
		if len(text) > MaxKeyBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, Unprintable) {
			return "", "", fmt.Errorf("%w: the pattern %s, expected up to %d bytes of UTF-8 without control characters",
				ErrBadKey, Shorten(text), MaxKeyBytes)
		}
		return "", text, nil
	}
	if network, ok, err := ParseNetwork(text); ok {
		return "", network.String(), err
	}
	return plain, "", ValidateKey(plain)
}

var escapes = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`)

// TargetOfKey returns the target that means this key alone.
func TargetOfKey(key string) string {
	target := escapes.Replace(key)
	if _, ok, _ := ParseNetwork(target); ok {
		at := strings.LastIndexByte(target, '/')
		target = target[:at] + `\` + target[at:]
	}
	return target
}

// ValidateReason reports whether a reason may be kept: up to 256 bytes of UTF-8 without control
// characters. The error wraps ErrBadOverride.
func ValidateReason(reason string) error {
	if len(reason) > maxReasonBytes || !utf8.ValidString(reason) || strings.ContainsFunc(reason, Unprintable) {
		return fmt.Errorf("%w: reason %s, expected at most %d bytes of UTF-8 without control characters",
			ErrBadOverride, Shorten(reason), maxReasonBytes)
	}
	return nil
}

// ParseOverride reads an override as Redis holds it; nil if the text is corrupt or foreign.
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

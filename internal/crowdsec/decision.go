// Package crowdsec returns the throttles and blocks of IP addresses in the form in which CrowdSec's local API returns
// decisions to bouncers, so that firewalls and proxies that have a bouncer enforce them. It decides what counts as an
// address, what a filter means (filter.go) and what each bouncer has not received yet (feed.go); check/httpapi serves
// it.
package crowdsec

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"
	"time"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/forwarded"
)

// Values that all decisions have.
const (
	Origin = "streamcounter"
	Type   = "ban"
	// keyPrefix begins the keys that are addresses.
	keyPrefix = "ip:"

	scopeIP, scopeRange = "Ip", "Range"
)

// The widest networks that a key can name. Keys come from callers, and one key must not shut out a large part of the
// Internet.
const widestIPv4, widestIPv6 = 24, 32

// longest is the longest duration that is announced. A decision that lasts longer is announced again in time. If a
// decision ends early while this process is away, it ends at the bouncers after this duration at the latest.
const longest = 4 * time.Hour

// Decision is one decision, as bouncers read it.
type Decision struct {
	Duration string `json:"duration"` // in Go's form, in whole seconds: some bouncers read no other
	ID       int64  `json:"id"`       // the same in every process, up to 2^53
	Origin   string `json:"origin"`
	Scenario string `json:"scenario"` // name of the rule
	Scope    string `json:"scope"`
	Type     string `json:"type"`
	Value    string `json:"value"`
}

// addressOf returns the address or network that a key names. It is false for addresses that no client has: a firewall
// that bans its own loopback cuts off the machine.
func addressOf(key string) (netip.Prefix, bool) {
	text, ok := strings.CutPrefix(key, keyPrefix)
	if !ok {
		return netip.Prefix{}, false
	}
	p, err := parseNetwork(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	widest, a := widestIPv6, p.Addr()
	if a.Is4() {
		widest = widestIPv4
	}
	return p, p.Bits() >= widest && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}

// parseNetwork reads an address or a network, but no address with a zone.
func parseNetwork(text string) (netip.Prefix, error) {
	if strings.Contains(text, "%") {
		return netip.Prefix{}, fmt.Errorf("%s has a zone", text)
	}
	return forwarded.ParseNetwork(text)
}

// standing is a decision as this process knows it.
type standing struct {
	at          netip.Prefix
	rule        string
	sinceMs     int64
	untilMs     int64 // 0: a block without an end
	announcedMs int64 // until when bouncers keep it
	change      uint64
}

func (s *standing) scope() string {
	if s.at.IsSingleIP() {
		return scopeIP
	}
	return scopeRange
}

func (s *standing) value() string {
	if s.at.IsSingleIP() {
		return s.at.Addr().String()
	}
	return s.at.String()
}

// endMs returns the end that is announced, if the decision is announced at nowMs.
func (s *standing) endMs(nowMs int64) int64 {
	most := nowMs + longest.Milliseconds()
	if s.untilMs == 0 {
		return most
	}
	return min(s.untilMs, most)
}

// outlasts orders decisions on the same address: the one that lasts longest is returned.
func (s *standing) outlasts(t *standing) bool {
	switch {
	case s.untilMs == t.untilMs:
		return cmp.Or(strings.Compare(s.rule, t.rule), cmp.Compare(s.sinceMs, t.sinceMs)) < 0
	case s.untilMs == 0 || t.untilMs == 0:
		return s.untilMs == 0
	}
	return s.untilMs > t.untilMs
}

func (s *standing) decision(leftMs int64) Decision {
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%s %s %d", s.at, s.rule, s.sinceMs)
	seconds := (leftMs + 999) / 1000
	return Decision{Duration: (time.Duration(seconds) * time.Second).String(), ID: int64(sum.Sum64() >> 11),
		Origin: Origin, Scenario: s.rule, Scope: s.scope(), Type: Type, Value: s.value()}
}

// standingOf makes a decision of a throttled key. It is false if the throttle is of none of the rules, not of an
// address, or over.
func (f *Feed) standingOf(t api.Throttled, nowMs int64) (*standing, bool) {
	if t.Shadow || !t.IsBlock() && !f.rules[t.Rule] || t.UntilMs != 0 && t.UntilMs <= nowMs {
		return nil, false
	}
	at, ok := addressOf(t.Key)
	return &standing{at: at, rule: t.Rule, sinceMs: t.SinceMs, untilMs: t.UntilMs}, ok
}

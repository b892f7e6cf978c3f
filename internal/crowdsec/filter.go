package crowdsec

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/streamcounter/streamcounter/api"
)

// Filter chooses decisions by the parameters of a request. The zero Filter takes all.
type Filter struct {
	network             netip.Prefix // zero: any
	within              bool         // decisions inside network, rather than those that cover it
	value, kind         string
	scopes, origins     []string
	containing, without []string // parts of scenarios
}

// ParseFilter reads the parameters ip, range, contains, value, type, scope, scopes, origins, scenarios_containing and
// scenarios_not_containing. Other parameters are ignored, and an empty one counts as missing, as in CrowdSec:
// bouncers send the parameters that their version knows.
func ParseFilter(q url.Values) (Filter, error) {
	f := Filter{value: q.Get("value"), kind: q.Get("type"), scopes: append(list(q, "scope"), list(q, "scopes")...),
		origins: list(q, "origins"), containing: list(q, "scenarios_containing"),
		without: list(q, "scenarios_not_containing")}
	for _, name := range []string{"ip", "range"} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		network, err := parseNetwork(text)
		if err != nil {
			return Filter{}, fmt.Errorf("%w: %s=%s, expected an IP address or a network such as 192.0.2.0/24",
				api.ErrBadRequest, name, api.Shorten(text))
		}
		f.network = network
	}
	if text := q.Get("contains"); text != "" {
		contains, err := strconv.ParseBool(text)
		if err != nil {
			return Filter{}, fmt.Errorf("%w: contains=%s, expected true or false", api.ErrBadRequest, api.Shorten(text))
		}
		f.within = !contains
	}
	return f, nil
}

// list returns the values of a parameter, which are separated by commas.
func list(q url.Values, name string) []string {
	if q.Get(name) == "" {
		return nil
	}
	return strings.Split(strings.ToLower(q.Get(name)), ",")
}

func (f *Filter) takes(s *standing) bool {
	scenario := strings.ToLower(s.rule)
	part := func(part string) bool { return strings.Contains(scenario, part) }
	return f.takesAddress(s) && (f.kind == "" || f.kind == Type) &&
		(f.scopes == nil || slices.Contains(f.scopes, strings.ToLower(s.scope()))) &&
		(f.origins == nil || slices.Contains(f.origins, Origin)) &&
		(f.containing == nil || slices.ContainsFunc(f.containing, part)) && !slices.ContainsFunc(f.without, part)
}

func (f *Filter) takesAddress(s *standing) bool {
	if f.value != "" && f.value != s.value() {
		return false
	}
	outer, inner := s.at, f.network
	if f.within {
		outer, inner = inner, outer
	}
	return !f.network.IsValid() || outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/streamcounter/streamcounter/api"
	"github.com/streamcounter/streamcounter/internal/crowdsec"
	"github.com/streamcounter/streamcounter/internal/settings"
	"github.com/streamcounter/streamcounter/windows"
)

// openBouncers returns the feed for CrowdSec's bouncers, nil without --bouncer-rules.
func (n *node) openBouncers() (*crowdsec.Feed, error) {
	if n.config.Checks.Bouncers == "" {
		return nil, nil
	}
	names := strings.Split(n.config.Checks.Bouncers, ",")
	rules := n.rules.Rules().List()
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
		at := slices.IndexFunc(rules, func(r *windows.Rule) bool { return r.Name == names[i] })
		switch {
		case at < 0 && names[i] != api.OverrideRule:
			return nil, settings.Wrong("bouncer-rules", n.config.Checks.Bouncers, fmt.Sprintf(
				"no rule is named %q, expected names of rules, separated by commas, or override", names[i]))
		case at >= 0 && rules[at].Shadow:
			n.log.Warn("a rule of --bouncer-rules is a shadow: bouncers do not get its keys", "rule", names[i])
		}
	}
	// Now is the clock of Redis, as far as it is known, because the end of a throttle is a time of that clock.
	return crowdsec.NewFeed(crowdsec.Config{Throttled: n.service.AllThrottled, Rules: names,
		Now: func() int64 { return n.present().ClockMs(0) }}), nil
}

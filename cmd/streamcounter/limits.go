package main

import (
	"log/slog"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/streamcounter/streamcounter/rls"
	"github.com/streamcounter/streamcounter/windows"
)

// openRules opens the rules file and the limits of --rls-config as one source of
// rules. With limits a server can do without a rules file; dev then keeps its
// example beside them.
func (c command) openRules(o *options, log *slog.Logger) (*windows.Source, error) {
	path, config := o.text("rules"), o.text("rls-config")
	if config == "" {
		return c.rules(path, log)
	}
	source := rls.SourceConfig{Limits: config, Rules: path, Options: limitOptions(o), Log: log}
	if path == "" && c.example {
		example, err := c.rules("", log)
		if err != nil {
			return nil, err
		}
		source.Base = example.Rules()
	}
	return rls.NewSource(source)
}

func limitOptions(o *options) []rls.Option {
	return []rls.Option{rls.Algorithm(o.text("rls-algorithm")), rls.Tag(o.text("rls-tag"))}
}

// findLimit is what the gRPC interface asks for each descriptor.
func (n *node) findLimit(domain string, d *commonv3.RateLimitDescriptor) (rls.Limit, bool) {
	return rls.Find(n.limits(), n.rules.Rules(), domain, d, n.rlsTag)
}

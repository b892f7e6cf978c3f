package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/streamcounter/streamcounter/internal/backend"
	"github.com/streamcounter/streamcounter/internal/natsconn"
	"github.com/streamcounter/streamcounter/internal/redact"
	"github.com/streamcounter/streamcounter/internal/settings"
)

// openNATS connects to NATS, embedded or not. If NATS does not answer yet, the connection is retried in the
// background, and transitions wait in the outbox meanwhile.
func (n *node) openNATS(context.Context) error {
	n.natsURL = n.config.NATS.URL
	if port, embedded := settings.EmbeddedPort(n.natsURL, 4222); embedded {
		url, stop, err := backend.StartNATS(port, n.config.NATS.Store, n.log)
		if err != nil {
			return err
		}
		n.atStop(stop)
		n.natsURL = url
	}
	n.nats = &natsconn.Status{OnClosed: func(err error) { n.natsClosed <- err }}
	natsMetrics(n.registry, n.nats)
	var err error
	n.nc, err = backend.ConnectNATS(n.config.NATS, natsconn.Config{URL: n.natsURL, Name: "streamcounter", Wait: true,
		Status: n.nats, Log: n.log}, nats.ReconnectBufSize(-1)) // without a connection, a publish fails at once
	if err != nil {
		return settings.Blame("nats", fmt.Errorf("%s: %w", cmp.Or(redact.URL(n.natsURL), "no URL"), redact.Error(err)))
	}
	n.atStop(n.nc.Close)
	if !n.nc.IsConnected() {
		n.log.Warn("NATS does not answer yet, trying again", "url", redact.URL(n.natsURL))
	}
	return nil
}

// natsMetrics registers metrics that show whether NATS is connected. They do not wait for the connection.
func natsMetrics(reg prometheus.Registerer, s *natsconn.Status) {
	stateGauge(reg, "nats_connected", "1 while this process is connected to NATS, else 0.", s.Connected)
	promauto.With(reg).NewCounterFunc(prometheus.CounterOpts{Name: "streamcounter_nats_disconnects_total",
		Help: "How often the connection to NATS was lost."}, func() float64 { return float64(s.Disconnects()) })
}

// stateGauge registers a gauge that is 1 while is returns true, else 0.
func stateGauge(reg prometheus.Registerer, name, help string, is func() bool) {
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{Name: "streamcounter_" + name, Help: help},
		func() float64 {
			if is() {
				return 1
			}
			return 0
		})
}

// openOptionalNATS connects if --nats is given: serve answers checks without NATS.
func (n *node) openOptionalNATS(ctx context.Context) error {
	if n.config.NATS.URL == "" {
		return nil
	}
	if _, embedded := settings.EmbeddedPort(n.config.NATS.URL, 0); embedded {
		return settings.Blame("nats",
			errors.New("expected the URL of the NATS that workers publish to; only dev embeds one"))
	}
	return n.openNATS(ctx)
}

// Package config finds the limit that a descriptor of Envoy's rate limit service falls under, and the key that it is
// counted by. It reads the configuration of envoyproxy/ratelimit as it is and makes rules of ours from it, so that
// checks and workers use the same limit for a key.
package config

// Package inprocess counts in this process, exactly and within a bound of keys. It
// knows no Redis: counters.Local counts with it while Redis is away, and package
// client while the server is. log.go has the arithmetic of one key.
package inprocess

// Package inprocess counts in this process, exactly and for a bounded number of keys.
// It does not use Redis. counters.Local counts with it while Redis does not answer, and
// package client while the server does not. log.go has the arithmetic of one key.
package inprocess

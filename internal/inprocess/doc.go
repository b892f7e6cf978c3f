// Package inprocess is the sliding log of one key in this process, pure: no
// clock, no lock, no rule, and the standard library only. windows.Local counts with
// it while Redis is away, and the client while the server is. Read log.go next.
package inprocess

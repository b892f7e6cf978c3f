package stream

import (
	"runtime"
	"strings"
)

// goroutine returns the number of the calling goroutine from its stack trace: "goroutine 7 [running]: …". Go has no
// other way to find out that Append was called by OnFlush. There it must not wait, because nobody else makes room.
func goroutine() string {
	var trace [64]byte
	number, _, _ := strings.Cut(string(trace[:runtime.Stack(trace[:], false)]), " [")
	return number
}

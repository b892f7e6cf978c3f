//go:build !linux

package bench

import "time"

func sleepShort(d time.Duration) { time.Sleep(d) }

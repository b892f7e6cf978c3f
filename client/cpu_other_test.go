//go:build !unix

package client

import "time"

func cpu() time.Duration { return 0 }

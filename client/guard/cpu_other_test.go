//go:build !unix

package guard

import "time"

func cpu() time.Duration { return 0 }

package testkit

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Resident reads how much memory a process has (VmRSS), in bytes. Only Linux tells.
func Resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kB, _, found := strings.Cut(rest, " kB")
	if !found {
		return 0, fmt.Errorf("process %d has no VmRSS: has it ended?", pid)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(kB), 10, 64)
	return n << 10, err
}
